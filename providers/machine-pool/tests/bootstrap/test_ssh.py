"""The transport over SSH, against OpenSSH's server."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from random import Random

import pytest
from capelin.client import Destinations
from capelin.testing.waiting import until
from capelin_machine_pool.bootstrap import (
    BootstrapStep,
    CleanStep,
    MachineBootstrap,
    TransportError,
    observe,
)
from capelin_machine_pool.bootstrap.ssh import InvalidKeyError, SshHost, as_root, connect_ssh

from tests.support.sandbox import Sandbox, sandbox
from tests.support.sshd import Server, new_key, require_sshd, sshd

from .test_engine import CONFIG, MACHINE, joins

LOOPBACK = Destinations((ip_network("127.0.0.0/8"),))


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncGenerator[Sandbox]:
    require_sshd()
    async with sandbox(tmp_path) as started:
        yield started


@pytest.fixture
async def server(machine: Sandbox) -> AsyncGenerator[Server]:
    async with sshd(machine) as started:
        yield started


async def fails(host: SshHost, destinations: Destinations = LOOPBACK) -> str:
    """The message of a connection that must fail."""
    with pytest.raises(TransportError) as caught:
        async with connect_ssh(host, destinations):
            pass
    return str(caught.value)


async def test_commands_run_on_the_machine(machine: Sandbox, server: Server) -> None:
    async with connect_ssh(server.host(), LOOPBACK) as transport:
        result = await transport.run("cat; uname -n; echo bad >&2; exit 3", stdin=b"input\n")
        assert (result.exit_code, result.output) == (3, b"input\nhost-1\n")
        assert result.message == "bad"
        # A command may end without reading its input.
        assert (await transport.run("true", stdin=bytes(1 << 20))).exit_code == 0
        await transport.write_file("/root/a b", bytes(range(256)) * 4096, mode=0o640)
        assert await transport.read_file("/root/a b", max_bytes=2 << 20) == bytes(range(256)) * 4096
        assert await machine.succeed("stat -c %a '/root/a b'") == "640\n"
        with pytest.raises(TransportError, match="cannot read /missing: head: "):
            await transport.read_file("/missing")


async def test_output_and_time_are_bounded(server: Server) -> None:
    async with connect_ssh(server.host(), LOOPBACK) as transport:
        with pytest.raises(TransportError, match="prints more than 1000 bytes"):
            await transport.run("yes", max_output=1000)
        with pytest.raises(TransportError, match="takes longer than 1 s"):
            await transport.run("sleep 60", timeout_seconds=1)
        # The connection still works.
        assert (await transport.run("true")).exit_code == 0


async def test_other_host_key_is_rejected(server: Server) -> None:
    other = new_key().export_public_key().decode()
    host = replace(server.host(), host_keys=(other,))
    expected = f"the host key of 127.0.0.1:{server.port} is not the configured one"
    assert await fails(host) == expected


async def test_certificate_of_the_host_ca_is_accepted(machine: Sandbox) -> None:
    async with sshd(machine, certified=True) as server:
        host = replace(server.host(), host_keys=(), host_cas=(server.ca,))
        async with connect_ssh(host, LOOPBACK) as transport:
            assert (await transport.run("true")).exit_code == 0
        assert "host key" in await fails(replace(host, host_cas=(server.host_key,)))


async def test_failures_have_reasons(server: Server) -> None:
    other = new_key().export_private_key().decode()
    host = server.host()
    where = f"127.0.0.1:{server.port}"
    rejected = await fails(replace(host, private_key=other))
    assert rejected == f"{where} rejects the user root with this key"
    assert await fails(replace(host, port=1)) == "cannot connect to 127.0.0.1:1: Connection refused"
    connections = server.connections
    refused = await fails(host, Destinations())
    assert refused.endswith("loopback and link-local addresses are not allowed")
    assert server.connections == connections


async def test_machine_behind_a_bastion_is_reached(machine: Sandbox, server: Server) -> None:
    await machine.succeed("/usr/sbin/sshd -f /etc/ssh/test/config -p 2222")
    behind = replace(server.host(), port=2222)
    async with connect_ssh(behind, LOOPBACK, bastion=server.host()) as transport:
        assert (await transport.run("uname -n")).output == b"host-1\n"


async def test_killed_connection_is_reported(server: Server) -> None:
    async with connect_ssh(server.host(), LOOPBACK) as transport:
        with pytest.raises(TransportError, match="ended"):
            await transport.run("pkill -KILL -x sshd; sleep 5")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host_keys": ()}, "neither a host key nor a host CA"),
        ({"host_keys": ("ssh-ed25519 x",)}, "not an OpenSSH public key"),
        ({"private_key": "hunter2"}, "the private key cannot be read"),
    ],
)
def test_invalid_keys_are_rejected(changes: dict[str, object], message: str) -> None:
    key = new_key()
    values: dict[str, object] = {
        "address": "host-1",
        "private_key": key.export_private_key().decode(),
        "host_keys": (key.export_public_key().decode(),),
    }
    with pytest.raises(InvalidKeyError, match=message) as caught:
        SshHost(**{**values, **changes})  # pyright: ignore[reportArgumentType]
    assert "hunter2" not in str(caught.value)


def test_other_users_become_root() -> None:
    assert as_root("root", "echo 'a'") == """/bin/sh -c 'echo '"'"'a'"'"''"""
    assert as_root("admin", "true") == "sudo -n -- /bin/sh -c true"


@pytest.mark.parametrize("seed", range(3))
async def test_connections_cut_at_any_byte_bootstrap_once(
    machine: Sandbox, server: Server, seed: int
) -> None:
    fresh = await machine.fingerprint()
    random = Random(seed)  # noqa: S311

    async def work(controller: MachineBootstrap, *, clean: bool) -> object:
        step: object = None

        async def ends() -> bool:
            nonlocal step
            server.cut_after = random.choice((random.randrange(40_000), None))
            try:
                async with connect_ssh(server.host(), LOOPBACK) as transport:
                    observed = await observe(transport)
                    if clean:
                        step = await controller.clean(transport, observed)
                        return step is CleanStep.CLEAN
                    step = await controller.bootstrap(transport, CONFIG, observed)
                    return step is BootstrapStep.SUCCEEDED
            except TransportError:
                return False

        await until(ends, within=90)
        return step

    await asyncio.gather(*(work(MACHINE, clean=False) for _ in range(2)))
    assert await joins(machine) == 1
    await asyncio.gather(*(work(MACHINE, clean=True) for _ in range(2)))
    assert await machine.fingerprint() == fresh
