"""The transport over SSH, against asyncssh's server, and in the long sessions against OpenSSH's."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
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
from tests.support.ssh_server import KILLS_CONNECTION, ssh_server
from tests.support.sshd import Server, new_key, sshd

from .test_engine import CONFIG, MACHINE, joins

OWNER = f"{os.getuid()}:{os.getgid()}"
LOOPBACK = Destinations((ip_network("127.0.0.0/8"),))


@dataclass
class Host:
    """A host with an SSH server."""

    serve: Callable[..., AbstractAsyncContextManager[Server]]
    folder: str
    """A folder of the host that commands may write to."""
    killing: str
    """The command that ends its connection."""
    behind: Callable[[Server], AbstractAsyncContextManager[SshHost]]
    """Another server, which a server leads to as a bastion."""


@asynccontextmanager
async def another_server(_: Server) -> AsyncGenerator[SshHost]:
    async with ssh_server() as other:
        yield other.host()


@asynccontextmanager
async def second_server(machine: Sandbox, server: Server) -> AsyncGenerator[SshHost]:
    await machine.succeed("/usr/sbin/sshd -f /etc/ssh/test/config -p 2222")
    yield replace(server.host(), port=2222)


@pytest.fixture(params=["asyncssh", pytest.param("OpenSSH", marks=pytest.mark.integration)])
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Host]:
    if request.param == "asyncssh":
        yield Host(ssh_server, str(tmp_path), KILLS_CONNECTION, another_server)
        return
    async with sandbox(tmp_path) as machine:
        yield Host(
            partial(sshd, machine),
            "/root",
            "pkill -KILL -x sshd; sleep 5",
            partial(second_server, machine),
        )


@pytest.fixture
async def server(host: Host) -> AsyncGenerator[Server]:
    async with host.serve() as started:
        yield started


async def fails(host: SshHost, destinations: Destinations = LOOPBACK) -> str:
    """The message of a connection that must fail."""
    with pytest.raises(TransportError) as caught:
        async with connect_ssh(host, destinations):
            pass
    return str(caught.value)


async def test_commands_run_on_the_host(host: Host, server: Server) -> None:
    file = f"{host.folder}/a b"
    async with connect_ssh(server.host(), LOOPBACK) as transport:
        result = await transport.run("cat; echo bad >&2; exit 3", stdin=b"input\n")
        assert (result.exit_code, result.output, result.message) == (3, b"input\n", "bad")
        # A command may end without reading its input.
        assert (await transport.run("true", stdin=bytes(1 << 20))).exit_code == 0
        await transport.write_file(file, bytes(range(256)) * 4096, mode=0o640, owner=OWNER)
        assert await transport.read_file(file, max_bytes=2 << 20) == bytes(range(256)) * 4096
        assert (await transport.run(f"stat -c %a '{file}'")).output == b"640\n"
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


async def test_certificate_of_the_host_ca_is_accepted(host: Host) -> None:
    async with host.serve(certified=True) as server:
        certified = replace(server.host(), host_keys=(), host_cas=(server.ca,))
        async with connect_ssh(certified, LOOPBACK) as transport:
            assert (await transport.run("true")).exit_code == 0
        assert "host key" in await fails(replace(certified, host_cas=(server.host_key,)))


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


async def test_host_behind_a_bastion_is_reached(host: Host, server: Server) -> None:
    async with (
        host.behind(server) as behind,
        connect_ssh(behind, LOOPBACK, bastion=server.host()) as transport,
    ):
        assert (await transport.run("echo here")).output == b"here\n"


async def test_a_connection_has_no_compression() -> None:
    """A packet of 256 KiB could become one of 240 MiB."""
    async with ssh_server(compression="zlib@openssh.com") as server:
        assert "compression" in await fails(server.host())


async def test_killed_connection_is_reported(host: Host, server: Server) -> None:
    async with connect_ssh(server.host(), LOOPBACK) as transport:
        with pytest.raises(TransportError, match=r"ended|closed"):
            await transport.run(host.killing)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host_keys": ()}, "neither a host key nor a host CA"),
        ({"host_keys": ("ssh-ed25519 x",)}, "not an OpenSSH public key"),
        ({"private_key": "hunter2"}, "the private key cannot be read"),
        ({"private_key": "x" * 8193}, "at most 8,192 bits"),
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


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(3))
async def test_connections_cut_at_any_byte_bootstrap_once(tmp_path: Path, seed: int) -> None:
    async with sandbox(tmp_path) as machine, sshd(machine) as server:
        await bootstrap_once_over_cut_connections(machine, server, Random(seed))  # noqa: S311


async def bootstrap_once_over_cut_connections(
    machine: Sandbox, server: Server, random: Random
) -> None:
    fresh = await machine.fingerprint()

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
