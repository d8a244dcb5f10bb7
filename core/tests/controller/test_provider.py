"""The example provider as a process: with many objects, at rest, and after crashes."""

import asyncio
import json
import os
import runpy
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
from capelin.api import Resource, Unstructured, crd
from capelin.api.core import CustomResourceDefinition, Lease
from capelin.client import Client, ClientOptions, Config
from capelin.testing.waiting import until
from capelin_embedded.apiserver import ApiServer

from tests.support.kernel import memory

HERE = Path(__file__).parent
SCHOOLS = Resource("example.capelin.io", "v1alpha1", "School", "schools")
MANY = int(os.environ.get("CAPELIN_TEST_OBJECTS", "200"))
CHANGED, DELETED = range(MANY // 10), range(MANY // 10, MANY // 8)

pytestmark = pytest.mark.timeout(600)


class Run(NamedTuple):
    """A reconcile from a journal. A killed one has no end."""

    name: str
    generation: int
    began: float
    ended: float


class Journal(NamedTuple):
    """A manager's record of its reconciles."""

    file: Path

    def runs(self) -> Iterator[Run]:
        """All reconciles. Fails if two reconciles of one object overlap."""
        running: dict[str, Run] = {}
        for line in self.file.read_text().splitlines():
            what, name, generation, moment = line.split()
            if what == "began":
                assert name not in running, f"{name} is reconciled by two tasks at once"
                running[name] = Run(name, int(generation), float(moment), float("inf"))
            else:
                yield running.pop(name)._replace(ended=float(moment))
        yield from running.values()

    def names(self) -> set[str]:
        """Names of all objects with a reconcile, complete or not."""
        return {run.name for run in self.runs()}

    def lines(self) -> int:
        return self.file.read_bytes().count(b"\n") if self.file.exists() else 0


@dataclass
class Sea:
    """A namespace with many schools, and managers for them in their own processes."""

    client: Client
    kubeconfig: Path
    namespace: str
    folder: Path
    managers: list[asyncio.subprocess.Process] = field(
        default_factory=list[asyncio.subprocess.Process]
    )

    async def start(self, name: str, *flags: str) -> tuple[asyncio.subprocess.Process, Journal]:
        """Start a manager and return its journal."""
        journal = Journal(self.folder / name)
        with (self.folder / f"{name}.log").open("wb") as log:
            manager = await asyncio.create_subprocess_exec(
                sys.executable,
                str(HERE / "journaled.py"),
                *(f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}"),
                *(f"--journal={journal.file}", f"--leader-elect-namespace={self.namespace}"),
                *("--metrics-address=0", "--health-address=0"),
                *flags,
                stderr=log,
            )
        self.managers.append(manager)
        return manager, journal

    async def create(self, number: int) -> None:
        school = {
            "apiVersion": SCHOOLS.api_version,
            "kind": SCHOOLS.kind,
            "metadata": {"name": name(number), "namespace": self.namespace},
            "spec": {"size": number},
        }
        await self.client.create(school, resource=SCHOOLS)

    async def resize(self, number: int) -> None:
        """Change a school several times, faster than it is reconciled."""
        for size in range(5):
            patch = {"spec": {"size": 999 - number - size}}
            await self.client.patch(SCHOOLS, name(number), self.namespace, patch)

    async def delete(self, number: int) -> None:
        await self.client.delete(SCHOOLS, name(number), self.namespace)

    async def all_settled(self, expected: int = MANY) -> bool:
        """Whether the status of each school matches its spec."""
        schools = (await self.client.list(SCHOOLS, self.namespace)).items
        return len(schools) == expected and all(is_settled(school) for school in schools)

    async def versions(self) -> dict[str, str]:
        schools = (await self.client.list(SCHOOLS, self.namespace)).items
        metadata = [school["metadata"] for school in schools]
        return {entry["name"]: entry["resourceVersion"] for entry in metadata}


def name(number: int) -> str:
    return f"s{number:04}"


def is_settled(school: Unstructured) -> bool:
    status = school.get("status", {})
    return (status.get("observedGeneration"), status.get("fish")) == (
        school["metadata"]["generation"],
        school["spec"]["size"],
    )


@asynccontextmanager
async def filled_sea(
    kubeconfig: Path, namespace: str, folder: Path, many: int = MANY
) -> AsyncGenerator[Sea]:
    config = Config.from_kubeconfig(kubeconfig)
    async with Client(config, options=ClientOptions(qps=0, connections=20)) as client:
        definition = crd(runpy.run_path(str(HERE / "example.py"))["School"])
        await client.apply(definition, resource=CustomResourceDefinition.resource)
        await until(lambda: is_established(client))
        sea = Sea(client, kubeconfig, namespace, folder)
        await asyncio.gather(*(sea.create(number) for number in range(many)))
        yield sea
        for manager in sea.managers:
            if manager.returncode is None:
                manager.kill()
            await manager.wait()


async def is_established(client: Client) -> bool:
    definition = await client.get(CustomResourceDefinition.resource, "schools.example.capelin.io")
    conditions: list[dict[str, str]] = definition.get("status", {}).get("conditions") or []
    return ("Established", "True") in [(c["type"], c["status"]) for c in conditions]


@pytest.fixture
async def sea(kubeconfig: Path, namespace: str, tmp_path: Path) -> AsyncIterator[Sea]:
    async with filled_sea(kubeconfig, namespace, tmp_path) as sea:
        yield sea


@pytest.fixture
async def pond(kubeconfig: Path, namespace: str, tmp_path: Path) -> AsyncIterator[Sea]:
    """A sea with few schools, for tests that do not depend on their number."""
    async with filled_sea(kubeconfig, namespace, tmp_path, many=10) as sea:
        yield sea


@pytest.mark.integration
async def test_a_manager_continues_after_a_restart_of_the_api_server(
    own_api_server: ApiServer, tmp_path: Path
) -> None:
    async with filled_sea(own_api_server.kubeconfig, "default", tmp_path) as sea:
        manager, journal = await sea.start("only")
        await until(lambda: journal.lines() >= MANY // 2)
        running = own_api_server.process("kube-apiserver")
        assert running is not None
        os.kill(running.pid, signal.SIGKILL)
        await until(lambda: own_api_server.process("kube-apiserver") is None)
        assert len(journal.names()) < MANY
        await own_api_server.start()
        await asyncio.gather(*(sea.resize(number) for number in CHANGED))
        await asyncio.gather(*(sea.delete(number) for number in DELETED))
        remaining = MANY - len(DELETED)
        await until(lambda: sea.all_settled(remaining))
        assert manager.returncode is None
        manager.terminate()
        assert await manager.wait() == 0
        assert journal.names() == {name(number) for number in range(MANY)}


@pytest.mark.integration
async def test_another_manager_takes_over_when_the_leader_is_killed(sea: Sea) -> None:
    leader, first = await sea.start("first", "--leader-elect")
    await until(lambda: first.lines() >= 1)
    heir, second = await sea.start("second", "--leader-elect")
    await until(lambda: first.lines() >= MANY // 2)
    leader.kill()
    await leader.wait()
    assert not second.lines()
    assert len(first.names()) < MANY
    await asyncio.gather(*(sea.resize(number) for number in CHANGED))
    await until(sea.all_settled)
    heir.terminate()
    assert await heir.wait() == 0
    ended = [run.ended for run in first.runs() if run.ended < float("inf")]
    assert max(ended) < min(run.began for run in second.runs())


@pytest.mark.integration
async def test_a_manager_at_rest_writes_nothing_and_stays_small(sea: Sea) -> None:
    manager, journal = await sea.start("only")
    await until(sea.all_settled)
    await until(lambda: is_quiet(journal))
    before, lines = await sea.versions(), journal.lines()
    await asyncio.sleep(5)
    assert (await sea.versions(), journal.lines()) == (before, lines)
    assert memory(manager.pid) <= 90 * 2**20


async def is_quiet(journal: Journal) -> bool:
    lines = journal.lines()
    await asyncio.sleep(1)
    return journal.lines() == lines


async def test_sigterm_ends_a_manager_and_releases_the_lease(pond: Sea) -> None:
    manager, journal = await pond.start("only", "--leader-elect", "--log-format=json")
    await until(lambda: journal.lines() > 0)
    manager.terminate()
    assert await manager.wait() == 0
    lease = await pond.client.get(Lease, "capelin-schools", pond.namespace)
    assert lease.spec.holder_identity == ""
    assert not any(run.ended == float("inf") for run in journal.runs()), "all reconciles must end"
    records = [json.loads(line) for line in (pond.folder / "only.log").read_text().splitlines()]
    assert records[-1]["message"] == "Stopping on SIGTERM"


async def test_losing_the_lease_ends_the_process(pond: Sea) -> None:
    manager, journal = await pond.start("only", "--leader-elect")
    await until(lambda: journal.lines() > 0)
    thief = {"spec": {"holderIdentity": "a thief"}}
    await pond.client.patch(Lease, "capelin-schools", pond.namespace, thief)
    async with asyncio.timeout(60):
        assert await manager.wait() == 1
    assert "could not renew the lease" in (pond.folder / "only.log").read_text()


def test_the_example_is_short() -> None:
    assert len((HERE / "example.py").read_text().splitlines()) <= 60
