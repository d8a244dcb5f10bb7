"""The command on real environments: start, recovery and removal."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from capelin.api.core import ConfigMap
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_embedded.management import (
    Environment,
    ProcessStatus,
    current_status,
    read_status,
)

from tests.leftovers import mentioning

from .homes import Home, processes

pytestmark = pytest.mark.timeout(900)

UP_SECONDS = 20.0
DOWN_SECONDS = 5.0


def listeners(ports: set[int], address: str) -> set[str]:
    """Listening sockets on these ports or on an address, in the notation of the kernel."""
    reverse = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            host, _, port = local.rpartition(":")
            if state == "0A" and (int(port, 16) in ports or host == reverse):
                found.add(local)
    return found


def listening(environment: Environment) -> Callable[[], set[str]]:
    settings = environment.settings()
    assert settings is not None
    place = json.loads((environment.folder / "place.json").read_bytes())
    return lambda: listeners(set(settings.ports.values()), place["address"])


def processes_of(environment: Environment) -> list[ProcessStatus]:
    """The processes in the supervisor's last status."""
    status = read_status(environment.status_file)
    assert status is not None
    return status.processes


def client_of(environment: Environment) -> Client:
    return Client(Config.from_kubeconfig(environment.kubeconfig))


async def test_up_is_fast_and_down_removes_everything(home: Home) -> None:
    # The first run fills the cache, and a busy machine may slow one of them down.
    took = [await up_and_down(home), await up_and_down(home)]
    assert min(up for up, _ in took) < UP_SECONDS
    assert min(down for _, down in took) < DOWN_SECONDS


async def up_and_down(home: Home) -> tuple[float, float]:
    """Seconds of up and down. Also checks that down removes everything."""
    began = time.monotonic()
    await home.up()
    up = time.monotonic() - began
    listening_now = listening(home.environment())
    assert listening_now()
    assert mentioning(home.folder, "environ")

    began = time.monotonic()
    ended = await home.capelin("down", "--yes")
    down = time.monotonic() - began
    assert ended.code == 0, ended.err
    assert mentioning(home.folder, "environ") == []
    assert listening_now() == set()
    assert list((home.folder / "capelin").iterdir()) == []
    return up, down


async def test_only_webhooks_of_cluster_api_listen_beyond_loopback(home: Home) -> None:
    await home.up()
    environment = home.environment()
    settings = environment.settings()
    assert settings is not None
    exposed = {
        int(local.rpartition(":")[2], 16)
        for pid in pids_of(home.folder)
        for local in listening_sockets(pid)
        if not is_loopback(local.rpartition(":")[0])
    }
    # Cluster API's managers have no flag for the address of their webhook server.
    webhooks = {
        port
        for name, port in settings.ports.items()
        if name.endswith("/webhooks") and not name.startswith("runtime-extension-")
    }
    assert exposed == webhooks


def pids_of(folder: Path) -> list[int]:
    """The processes of the environments in a folder."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def listening_sockets(pid: int) -> set[str]:
    """Local addresses of listening sockets, in the notation of the kernel."""
    inodes: set[str] = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


def is_loopback(host: str) -> bool:
    """Whether an address in the kernel's notation is 127.x.x.x or ::1."""
    mapped = host.startswith("0000000000000000FFFF0000")
    is_ipv4 = len(host) == 8 or mapped
    return host[-2:] == "7F" if is_ipv4 else host == "00000000000000000000000001000000"


@pytest.mark.representative
async def test_killed_processes_restart_without_loss_of_objects(home: Home) -> None:
    await home.up()
    environment = home.environment()
    async with client_of(environment) as client:
        await client.apply(ConfigMap.of("kept", "default", data={"a": "b"}))
    before = processes(environment)
    assert {"supervisor", "etcd", "kube-apiserver", "cluster-api"} <= before.keys()

    for name in sorted(before.keys() - {"supervisor"}):
        os.kill(processes(environment)[name], signal.SIGKILL)

        async def is_back(name: str = name) -> bool:
            now = processes(environment).get(name)
            status = current_status(environment)
            return now not in {None, before[name]} and status is not None and status.is_up

        await until(is_back)

    os.kill(before["supervisor"], signal.SIGKILL)
    survivors = processes(environment)
    restarts = {process.name: process.restarts for process in processes_of(environment)}
    assert restarts == dict.fromkeys(restarts, 1)
    shown = await home.capelin("status", "--exit-code")
    assert "The supervisor of environment default was killed. It runs again." in shown.err
    assert "unsupervised" not in shown.out

    def is_up() -> bool:
        status = current_status(environment)
        return status is not None and status.is_up

    await until(is_up)
    after = processes(environment)
    assert after["supervisor"] != survivors.get("supervisor")
    assert {process.name: process.restarts for process in processes_of(environment)} == restarts
    assert survivors.keys() - {"supervisor"} <= after.keys()
    assert {name: after[name] for name in survivors if name != "supervisor"} == {
        name: pid for name, pid in survivors.items() if name != "supervisor"
    }, "the new supervisor restarted a running process"

    for pid in processes(environment).values():
        os.kill(pid, signal.SIGKILL)
    await home.up()
    async with client_of(environment) as client:
        assert (await client.get(ConfigMap, "kept", "default")).data == {"a": "b"}


async def test_two_environments(home: Home, run_program: Callable[..., Awaitable[str]]) -> None:
    await asyncio.gather(home.up("one"), home.up("two"))
    one, two = home.environment("one"), home.environment("two")
    async with client_of(one) as client:
        await client.apply(ConfigMap.of("only-here", "default"))
    async with client_of(two) as client:
        assert await client.find(ConfigMap, "only-here", "default") is None
    status = await home.capelin("status", "-o", "json")
    assert [(each["name"], each["state"]) for each in json.loads(status.out)] == [
        ("one", "up"),
        ("two", "up"),
    ]
    found = await run_program(one.kubeconfig, "kubectl", "get", "clusters", "-A")
    assert "No resources found" in found
    await home.capelin("down", "-e", "one", "--yes")
    async with client_of(two) as client:
        assert await client.find(ConfigMap, "only-here", "default") is None


async def test_a_second_up_reports_that_the_first_is_running(home: Home) -> None:
    first = await home.start("up", "--management-only")

    async def has_begun() -> bool:
        return home.environment().settings() is not None

    await until(has_begun)
    second = await home.capelin("up", "--management-only")
    assert second.code == 5
    assert "capelin up is changing it" in second.err
    await first.communicate()
    assert first.returncode == 0


async def test_up_and_down_continue_after_ctrl_c_at_any_time(home: Home) -> None:
    async def interrupted(*arguments: str, once: Callable[[], bool]) -> tuple[int, str]:
        command = await home.start(*arguments)
        await until(lambda: once() or command.returncode is not None)
        if command.returncode is None:
            command.send_signal(signal.SIGINT)
        _, err = await command.communicate()
        return command.returncode or 0, err.decode()

    def runs(name: str) -> bool:
        return name in processes(home.environment())

    async def nothing_is_left() -> None:
        ended = await home.capelin("down", "--yes")
        assert ended.code in {0, 4}, ended.err
        assert mentioning(home.folder, "environ") == []
        assert not home.environment().folder.exists()

    for moment in (
        home.environment().folder.exists,
        partial(runs, "etcd"),
        partial(runs, "kube-apiserver"),
        partial(runs, "cluster-api"),
    ):
        await nothing_is_left()
        code, err = await interrupted("up", "--management-only", once=moment)
        assert code == 130
        assert re.search(r"Continue with .*up -e default", err), err
    await home.up()
    code, err = await interrupted("down", "--yes", once=lambda: not runs("kube-apiserver"))
    assert code in {0, 130}, err
    await nothing_is_left()
