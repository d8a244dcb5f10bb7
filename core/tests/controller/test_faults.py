"""Many objects, while the API server or the manager is killed in the middle of it."""

import asyncio
import os
import runpy
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from capelin.api import Resource, Unstructured, crd
from capelin.api.views.core import CustomResourceDefinition
from capelin.client import Client, Config, Options
from capelin.embedded.apiserver import ApiServer

HERE = Path(__file__).parent
SCHOOLS = Resource("example.capelin.io", "v1alpha1", "School", "schools")
MANY = int(os.environ.get("CAPELIN_TEST_OBJECTS", "200"))
CHANGED, DELETED = range(MANY // 10), range(MANY // 10, MANY // 8)

pytestmark = pytest.mark.timeout(400)


class Run(NamedTuple):
    """A reconcile as a journal tells of it. One that was killed has no end."""

    name: str
    began: float
    ended: float


class Journal(NamedTuple):
    """What a manager writes down about its reconciles."""

    file: Path

    def runs(self) -> Iterator[Run]:
        """Every reconcile. Two of one object at once would be a second line too early."""
        open_: dict[str, float] = {}
        for line in self.file.read_text().splitlines():
            what, name, _, moment = line.split()
            if what == "began":
                assert name not in open_, f"{name} is reconciled by two tasks at once"
                open_[name] = float(moment)
            else:
                yield Run(name, open_.pop(name), float(moment))
        for name, began in open_.items():
            yield Run(name, began, float("inf"))

    def lines(self) -> int:
        """How much there is."""
        return self.file.read_bytes().count(b"\n") if self.file.exists() else 0


class Fleet:
    """Managers as processes of their own, on one API server."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.kubeconfig = server.kubeconfig
        self.folder = folder
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(self, name: str, *flags: str) -> tuple[asyncio.subprocess.Process, Journal]:
        journal = Journal(self.folder / name)
        with (self.folder / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(HERE / "journaled.py"),
                *(f"--kubeconfig={self.kubeconfig}", f"--journal={journal.file}"),
                *("--metrics-address=0", "--health-address=0"),
                *flags,
                stderr=log,
            )
        self.processes.append(process)
        return process, journal

    async def end(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture
async def fleet(own_api_server: ApiServer, tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(own_api_server, tmp_path)
    yield made
    await made.end()


@pytest.fixture
async def own_client(own_api_server: ApiServer, eventually: Any) -> AsyncIterator[Client]:
    """A client of an API server that has many schools."""
    config = Config.from_kubeconfig(own_api_server.kubeconfig)
    async with Client(config, options=Options(qps=0, connections=20)) as client:
        definition = crd(runpy.run_path(str(HERE / "example.py"))["School"])
        await client.apply(definition, resource=CustomResourceDefinition.resource)
        await eventually(lambda: is_served(client))
        await asyncio.gather(*(create(client, number) for number in range(MANY)))
        yield client


async def is_served(client: Client) -> bool:
    found = await client.resources("apiextensions.k8s.io/v1")
    definition = await client.get(CustomResourceDefinition.resource, "schools.example.capelin.io")
    conditions = definition.get("status", {}).get("conditions", [])
    return bool(found) and any(
        (one["type"], one["status"]) == ("Established", "True") for one in conditions
    )


def name(number: int) -> str:
    return f"s{number:04}"


async def create(client: Client, number: int) -> None:
    school = {
        "apiVersion": SCHOOLS.api_version,
        "kind": SCHOOLS.kind,
        "metadata": {"name": name(number), "namespace": "default"},
        "spec": {"size": number},
    }
    await client.create(school, resource=SCHOOLS)


async def resize(client: Client, number: int, size: int) -> None:
    await client.patch(SCHOOLS, name(number), "default", {"spec": {"size": size}})


def is_settled(school: Unstructured) -> bool:
    status = school.get("status", {})
    return (status.get("observedGeneration"), status.get("fish")) == (
        school["metadata"]["generation"],
        school["spec"]["size"],
    )


async def all_settled(client: Client, expected: int) -> bool:
    schools = (await client.list(SCHOOLS, "default")).items
    return len(schools) == expected and all(is_settled(school) for school in schools)


async def test_no_object_is_forgotten_when_the_api_server_is_killed_and_comes_back(
    own_api_server: ApiServer, own_client: Client, fleet: Fleet, eventually: Any
) -> None:
    manager, journal = await fleet.start("only")
    await eventually(lambda: journal.lines() >= MANY // 2, within=120)
    running = own_api_server.process("kube-apiserver")
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    await eventually(lambda: own_api_server.process("kube-apiserver") is None)
    assert len(names_of(journal)) < MANY
    await own_api_server.start()
    await asyncio.gather(*(resize(own_client, number, 999 - number) for number in CHANGED))
    for number in DELETED:
        await own_client.delete(SCHOOLS, name(number), "default")
    left = MANY - len(DELETED)
    await eventually(lambda: all_settled(own_client, left), within=120, pause=0.5)
    assert manager.returncode is None
    manager.terminate()
    assert await manager.wait() == 0
    assert names_of(journal) == {name(number) for number in range(MANY)}


def names_of(journal: Journal) -> set[str]:
    return {run.name for run in journal.runs()}


async def test_another_manager_takes_over_when_the_leader_is_killed(
    own_client: Client, fleet: Fleet, eventually: Any
) -> None:
    election = ("--leader-elect", "--leader-elect-namespace=default")
    leader, first = await fleet.start("first", *election)
    await eventually(lambda: first.lines() >= 1, within=120)
    heir, second = await fleet.start("second", *election)
    await eventually(lambda: first.lines() >= MANY // 2, within=120)
    leader.kill()
    await leader.wait()
    assert not second.lines()
    assert len(names_of(first)) < MANY
    await asyncio.gather(*(resize(own_client, number, 999 - number) for number in CHANGED))
    await eventually(lambda: all_settled(own_client, MANY), within=120, pause=0.5)
    heir.terminate()
    assert await heir.wait() == 0
    ended = [run.ended for run in first.runs() if run.ended < float("inf")]
    assert max(ended) < min(run.began for run in second.runs())
