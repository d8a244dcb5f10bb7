"""The example provider of `core/tests/controller` with 1,000 objects on a real API server."""

import asyncio
import os
import runpy
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from capelin.api import Resource, crd
from capelin.api.core import CustomResourceDefinition
from capelin.client import Client, ClientOptions, Config
from capelin.embedded.apiserver import ApiServer, Settings
from capelin.embedded.management import CORE

from tests.bench.rows import Row, percentile
from tests.bench.running import cpu_seconds, management, resident_memory

TESTS = Path(__file__).parents[2] / "core" / "tests" / "controller"
SCHOOLS = Resource("example.capelin.io", "v1alpha1", "School", "schools")
OBJECTS = 1000
CHANGES = 300
REST = 120.0

# Nothing but the manager may write: neither the API server's own lease nor any controller.
QUIET = Settings(
    durable=False, controllers=(), arguments={"feature-gates": "APIServerIdentity=false"}
)


@dataclass(frozen=True, slots=True)
class Setting:
    """An API server with many objects and a manager that looks after them."""

    client: Client
    manager: asyncio.subprocess.Process
    journal: Path

    def ended(self) -> dict[tuple[str, int], float]:
        """When the first reconcile of each object's each generation ended."""
        ends: dict[tuple[str, int], float] = {}
        for line in self.journal.read_text().splitlines():
            what, name, generation, moment = line.split()
            if what == "ended":
                ends.setdefault((name, int(generation)), float(moment))
        return ends

    async def quiet(self) -> None:
        """Wait until every object was reconciled and no reconcile runs any more."""
        lines = -1
        while lines < 2 * OBJECTS or lines != self.journal.read_bytes().count(b"\n"):
            lines = self.journal.read_bytes().count(b"\n") if self.journal.exists() else 0
            await asyncio.sleep(1)


async def measure() -> list[Row]:
    """Everything about the controller room."""
    async with prepared() as setting:
        began = time.monotonic()
        await setting.quiet()
        start = max(setting.ended().values()) - began
        rows = [
            Row(name=f"{OBJECTS} objects, cold start until reconciled", measured=start, unit="s"),
            *await latency(setting),
            *await rest(setting, await core_manager()),
        ]
    return [*rows, *await faults()]


async def latency(setting: Setting) -> list[Row]:
    """From before a client's PATCH to the end of its reconcile, one change at a time."""
    sent: dict[tuple[str, int], float] = {}
    requests: list[float] = []
    for number in range(CHANGES):
        name, size = f"s{number:04}", {"spec": {"size": 500 + number % 100}}
        before = time.monotonic()
        changed = await setting.client.patch(SCHOOLS, name, "default", size)
        requests.append(1000 * (time.monotonic() - before))
        sent[name, changed["metadata"]["generation"]] = before
        await asyncio.sleep(0.1)
    await setting.quiet()
    ended = setting.ended()
    took = [1000 * (ended[change] - before) for change, before in sent.items()]
    beside = f"the PATCH alone: {percentile(requests, 0.5):.1f} ms"
    return [
        Row(
            name="change to end of reconcile, p50",
            measured=percentile(took, 0.5),
            unit="ms",
            at_most=15,
            beside=beside,
        ),
        Row(name="change to end of reconcile, p99", measured=percentile(took, 0.99), unit="ms"),
    ]


async def core_manager() -> str:
    """How much memory Cluster API's core manager has with nothing to do, once it is up."""
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as home:
        async with management(home, durable=False) as bench:
            await asyncio.sleep(30)
            return f"Cluster API's core manager: {resident_memory(bench.pid(CORE.label)):.1f} MiB"


async def rest(setting: Setting, core: str) -> list[Row]:
    """What a manager does and needs when nothing happens."""
    before, revision, used = (
        await versions(setting),
        await etcd(setting),
        cpu_seconds(setting.manager.pid),
    )
    await asyncio.sleep(REST)
    after = await versions(setting)
    changed = sum(after.get(name) != version for name, version in before.items())
    size = f"idle manager, {OBJECTS} objects"
    pause = f"{REST:g} s"
    return [
        Row(
            name=f"{size}: resident memory",
            measured=resident_memory(setting.manager.pid),
            unit="MiB",
            at_most=90,
            beside=core,
        ),
        Row(name=f"{size}: changed in {pause}", measured=changed, unit="objects", at_most=0),
        Row(
            name=f"{size}: etcd's revision in {pause}",
            measured=await etcd(setting) - revision,
            unit="writes",
            at_most=0,
        ),
        Row(
            name=f"{size}: CPU in {pause}",
            measured=cpu_seconds(setting.manager.pid) - used,
            unit="s",
        ),
    ]


async def faults() -> list[Row]:
    """The tests that kill the API server and the leader, with as many objects."""
    rows: list[Row] = []
    for what, test in (("API server", "forgotten"), ("leader", "takes_over")):
        pytest = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", "-q", "-k", test, str(TESTS / "test_provider.py")),
            env={**os.environ, "CAPELIN_TEST_OBJECTS": str(OBJECTS)},
        )
        failed = await pytest.wait() != 0
        name = f"{what} killed among {OBJECTS} objects: some forgotten, or two runs of one at once"
        rows.append(Row(name=name, measured=failed, unit="failures", at_most=0))
    return rows


async def versions(setting: Setting) -> dict[str, str]:
    """The resourceVersion of every object."""
    found = (await setting.client.list(SCHOOLS)).items
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in found}


async def etcd(setting: Setting) -> int:
    """etcd's revision, which every write moves on."""
    return int((await setting.client.list(CustomResourceDefinition)).resource_version)


@asynccontextmanager
async def prepared() -> AsyncGenerator[Setting]:
    """The setting, and nothing left of it."""
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as folder:
        server = await ApiServer.prepare(Path(folder) / "server", QUIET)
        try:
            await server.start()
            async with prepared_objects(server) as client:
                journal = Path(folder) / "journal"
                manager = await asyncio.create_subprocess_exec(
                    sys.executable,
                    str(TESTS / "journaled.py"),
                    *(f"--kubeconfig={server.kubeconfig}", f"--journal={journal}"),
                    *("--metrics-address=0", "--health-address=0"),
                )
                try:
                    yield Setting(client, manager, journal)
                finally:
                    manager.terminate()
                    await manager.wait()
        finally:
            await server.stop()


@asynccontextmanager
async def prepared_objects(server: ApiServer) -> AsyncGenerator[Client]:
    """A client of an API server that has the objects."""
    config = Config.from_kubeconfig(server.kubeconfig)
    async with Client(config, options=ClientOptions(qps=0, connections=20)) as client:
        definition = crd(runpy.run_path(str(TESTS / "example.py"))["School"])
        await client.apply(definition, resource=CustomResourceDefinition.resource)
        while not await is_established(client):  # noqa: ASYNC110 - the API server tells nobody
            await asyncio.sleep(0.1)
        await asyncio.gather(*(create(client, number) for number in range(OBJECTS)))
        yield client


async def is_established(client: Client) -> bool:
    """Whether the API server takes objects of the example's kind."""
    definition = await client.get(CustomResourceDefinition.resource, "schools.example.capelin.io")
    conditions: list[dict[str, str]] = definition.get("status", {}).get("conditions") or []
    return ("Established", "True") in [(one["type"], one["status"]) for one in conditions]


async def create(client: Client, number: int) -> None:
    """One object."""
    school = {
        "apiVersion": SCHOOLS.api_version,
        "kind": SCHOOLS.kind,
        "metadata": {"name": f"s{number:04}", "namespace": "default"},
        "spec": {"size": number % 1000},
    }
    await client.create(school, resource=SCHOOLS)
