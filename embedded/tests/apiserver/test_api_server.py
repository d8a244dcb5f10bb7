"""A real API server: its data, its access control and its recovery."""

import asyncio
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from capelin.api.core import Namespace, ServiceAccount
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_embedded.apiserver import ApiServer, Settings
from capelin_embedded.components import OwnedFlagError
from capelin_embedded.processes import NotReadyError, Supervisor, kill_all, state_dir

from tests.support.kernel import listening_ports

PROGRAMS = Settings().programs
pytestmark = pytest.mark.needs_programs(*PROGRAMS)

NAMES = ("etcd", "kube-apiserver", "kube-controller-manager")
QUICK = Settings(durable=False)


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path / "server"
    await kill_all(tmp_path / "server" / "processes")


async def started(folder: Path, settings: Settings = QUICK) -> ApiServer:
    server = await ApiServer.prepare(folder, settings)
    await server.start()
    return server


def client_of(server: ApiServer) -> Client:
    return Client(Config.from_kubeconfig(server.kubeconfig), manager="test")


def pids(server: ApiServer) -> dict[str, int]:
    processes = {name: server.process(name) for name in NAMES}
    return {name: process.pid for name, process in processes.items() if process is not None}


def hashes(server: ApiServer) -> dict[str, str]:
    return {declared.name: declared.command.hash for declared in server.declared}


def answer(address: str, port: int, trust: ssl.SSLContext) -> bytes:
    """Response of an HTTPS server to a health check, or nothing."""
    with socket.create_connection((address, port), timeout=10) as connection:
        try:
            with trust.wrap_socket(connection, server_hostname=address) as tls:
                tls.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                return b"".join(iter(lambda: tls.recv(4096), b""))
        except (ssl.SSLError, ConnectionResetError):
            return b""


def read(file: Path) -> str:
    return file.read_text()


def others_may_read(folder: Path) -> list[Path]:
    return [path for path in [folder, *folder.rglob("*")] if path.stat().st_mode & 0o077]


def private_keys(folder: Path) -> list[str]:
    return [path.read_text().splitlines()[1] for path in (folder / "pki").glob("*.key")]


def cmdline_of(pid: int) -> str:
    """Command line of a process, which all users of the machine can read."""
    return Path(f"/proc/{pid}/cmdline").read_text()


async def test_objects_survive_a_restart_and_keys_stay_private(folder: Path) -> None:
    server = await started(folder)
    before = pids(server)
    assert {*before} == {*NAMES}
    async with client_of(server) as client:
        await client.create(Namespace.of("kept"))
        # Created by the controller manager, although `start` does not wait for it.
        await until(lambda: client.find(ServiceAccount, "default", "kept"))
    assert others_may_read(folder) == []
    assert not any(
        key in cmdline_of(pid) for key in private_keys(folder) for pid in before.values()
    )
    assert {6443, 2379, 2380} <= {*listening_ports(server.listeners.address)}

    await server.start()
    assert pids(server) == before, "a second start must not replace running processes"

    await server.stop()
    assert pids(server) == {}
    assert listening_ports(server.listeners.address) == []
    assert list(state_dir.recorded_names(server.processes)) == []

    restarted = await started(folder)
    assert restarted.url == server.url
    async with client_of(restarted) as client:
        assert (await client.get(Namespace, "kept")).name == "kept"


@pytest.mark.integration
async def test_every_killed_process_restarts(folder: Path) -> None:
    server = await ApiServer.prepare(folder, QUICK)
    async with Supervisor(server.processes) as supervisor, client_of(server) as client:
        supervisor.declare(*server.declared)
        await supervisor.ready()
        await client.create(Namespace.of("kept"))
        for name in NAMES:
            before = pids(server)
            os.kill(before[name], signal.SIGKILL)
            await until(lambda: pids(server).get(name) not in {None, before[name]})  # noqa: B023
            await supervisor.ready()
            assert (await client.get(Namespace, "kept")).name == "kept"


async def test_processes_of_a_killed_starter_are_adopted(
    folder: Path,
) -> None:
    script = f"""
import asyncio, pathlib
from capelin_embedded.apiserver import ApiServer, Settings
async def main():
    server = await ApiServer.prepare(pathlib.Path({str(folder)!r}), Settings(durable=False))
    await server.start()
asyncio.run(main())
"""
    starter = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    await until((folder / "processes" / "kube-apiserver.process").exists)
    starter.kill()
    await starter.wait()

    server = await ApiServer.prepare(folder, QUICK)
    began = pids(server)
    assert {*began} == {"etcd", "kube-apiserver"}
    await server.start()
    assert pids(server).items() >= began.items()

    changed = await ApiServer.prepare(folder, Settings(durable=False, arguments={"v": "1"}))
    await changed.start()
    after = pids(changed)
    assert after["etcd"] == began["etcd"]
    assert after["kube-apiserver"] != began["kube-apiserver"]
    assert "--v=1\0" in cmdline_of(after["kube-apiserver"])


async def test_the_error_names_an_unknown_flag(folder: Path) -> None:
    settings = Settings(durable=False, controllers=(), arguments={"no-such-flag": "1"})
    server = await ApiServer.prepare(folder, settings)
    with pytest.raises(NotReadyError) as error:
        await server.start()
    assert str(error.value) == (
        "kube-apiserver is not ready (Failed): exited with code 1: "
        f"Error: unknown flag: --no-such-flag (log: {server.processes}/kube-apiserver.log)"
    )


async def test_prepare_rejects_a_flag_that_capelin_owns(folder: Path) -> None:
    with pytest.raises(OwnedFlagError, match="--secure-port is set by Capelin"):
        await ApiServer.prepare(folder, Settings(arguments={"secure-port": "1"}))


async def test_prepare_replaces_a_port_in_use(folder: Path) -> None:
    before = await ApiServer.prepare(folder, QUICK)
    with socket.create_server((before.listeners.address, before.listeners.port)):
        after = await ApiServer.prepare(folder, QUICK)
    assert after.listeners.address == before.listeners.address
    assert after.listeners.port != before.listeners.port
    assert after.listeners.etcd_port == before.listeners.etcd_port
    assert after.url in read(after.kubeconfig)


async def test_a_renewed_certificate_changes_only_the_process_that_uses_it(folder: Path) -> None:
    before = await ApiServer.prepare(folder, QUICK)
    same = await ApiServer.prepare(folder, QUICK)
    assert hashes(same) == hashes(before)
    (folder / "pki" / "controller-manager.crt").unlink()
    renewed = await ApiServer.prepare(folder, QUICK)
    differing = {name for name, value in hashes(renewed).items() if value != hashes(before)[name]}
    assert differing == {"kube-controller-manager"}


async def test_two_folders_have_different_addresses(tmp_path: Path) -> None:
    first = await ApiServer.prepare(tmp_path / "first", QUICK)
    second = await ApiServer.prepare(tmp_path / "second", QUICK)
    assert first.listeners.address != second.listeners.address


async def test_an_api_server_without_controllers_needs_no_controller_manager(folder: Path) -> None:
    settings = Settings(controllers=())
    server = await ApiServer.prepare(folder, settings)
    assert [declared.name for declared in server.declared] == ["etcd", "kube-apiserver"]
    assert [program.partition("@")[0] for program in settings.programs] == [
        "etcd",
        "kube-apiserver",
    ]


def test_etcd_rejects_clients_without_a_certificate_of_its_ca(api_server: ApiServer) -> None:
    listeners, keys = api_server.listeners, api_server.keys
    trust = ssl.create_default_context(cafile=keys.ca("etcd-ca"))
    assert answer(listeners.address, listeners.etcd_port, trust) == b""
    # Another CA signs the API server's own clients.
    trust.load_cert_chain(*keys.files("admin"))
    assert answer(listeners.address, listeners.etcd_port, trust) == b""
    trust.load_cert_chain(*keys.files("apiserver-etcd-client"))
    assert b'"health":"true"' in answer(listeners.address, listeners.etcd_port, trust)
