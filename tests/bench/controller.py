"""The example provider of `core/tests/controller` with 1,000 objects on a real API server."""

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from capelin.api.core import CustomResourceDefinition
from capelin_embedded.apiserver import ApiServer, Settings
from capelin_embedded.management import CORE

from core.tests.controller.test_provider import SCHOOLS, Journal, Sea, filled_sea, name
from tests.bench.rows import Row, percentile
from tests.bench.running import cpu_seconds, management, resident_memory

OBJECTS = 1000
CHANGES = 300
REST = 120.0

# Nothing but the manager may write: neither the API server's own lease nor any controller.
QUIET = Settings(
    durable=False, controllers=(), arguments={"feature-gates": "APIServerIdentity=false"}
)


@dataclass(frozen=True, slots=True)
class Setting:
    """An API server with many objects and their manager."""

    sea: Sea
    pid: int
    journal: Journal

    def ended(self) -> dict[tuple[str, int], float]:
        """The end of the first reconcile for each generation of each object."""
        ends: dict[tuple[str, int], float] = {}
        for run in self.journal.runs():
            ends.setdefault((run.name, run.generation), run.ended)
        return ends

    async def quiet(self) -> None:
        """Wait until every object was reconciled and no reconcile runs any more."""
        lines = -1
        while lines < 2 * OBJECTS or lines != self.journal.lines():
            lines = self.journal.lines()
            await asyncio.sleep(1)


async def measure() -> list[Row]:
    """Latency and idle usage of a manager."""
    async with prepared() as setting:
        began = time.monotonic()
        await setting.quiet()
        start = max(setting.ended().values()) - began
        return [
            Row(name=f"{OBJECTS} objects, cold start until reconciled", measured=start, unit="s"),
            *await latency(setting),
            *await rest(setting, await core_manager()),
        ]


async def latency(setting: Setting) -> list[Row]:
    """Time from a client's PATCH to the end of its reconcile, one change at a time."""
    sent: dict[tuple[str, int], float] = {}
    requests: list[float] = []
    for number in range(CHANGES):
        size = {"spec": {"size": 500 + number % 100}}
        before = time.monotonic()
        changed = await setting.sea.client.patch(SCHOOLS, name(number), "default", size)
        requests.append(1000 * (time.monotonic() - before))
        sent[name(number), changed["metadata"]["generation"]] = before
        await asyncio.sleep(0.1)
    await setting.quiet()
    ended = setting.ended()
    took = [1000 * (ended[change] - before) for change, before in sent.items()]
    comparison = f"only the PATCH: {percentile(requests, 0.5):.1f} ms"
    return [
        Row(
            name="change to end of reconcile, p50",
            measured=percentile(took, 0.5),
            unit="ms",
            at_most=15,
            comparison=comparison,
        ),
        Row(name="change to end of reconcile, p99", measured=percentile(took, 0.99), unit="ms"),
    ]


async def core_manager() -> str:
    """The memory of Cluster API's idle core manager."""
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as home:
        async with management(home, durable=False) as bench:
            await asyncio.sleep(30)
            return f"Cluster API's core manager: {resident_memory(bench.pid(CORE.label)):.1f} MiB"


async def rest(setting: Setting, core: str) -> list[Row]:
    """Writes and resources of an idle manager."""
    before, revision = await setting.sea.versions(), await etcd(setting)
    used = cpu_seconds(setting.pid)
    await asyncio.sleep(REST)
    after = await setting.sea.versions()
    changed = sum(after.get(name) != version for name, version in before.items())
    size = f"idle manager, {OBJECTS} objects"
    pause = f"{REST:g} s"
    return [
        Row(
            name=f"{size}: resident memory",
            measured=resident_memory(setting.pid),
            unit="MiB",
            at_most=90,
            comparison=core,
        ),
        Row(name=f"{size}: changed in {pause}", measured=changed, unit="objects", at_most=0),
        Row(
            name=f"{size}: etcd's revision in {pause}",
            measured=await etcd(setting) - revision,
            unit="writes",
            at_most=0,
        ),
        Row(name=f"{size}: CPU in {pause}", measured=cpu_seconds(setting.pid) - used, unit="s"),
    ]


async def etcd(setting: Setting) -> int:
    """etcd's revision, which every write increases."""
    return int((await setting.sea.client.list(CustomResourceDefinition)).resource_version)


@asynccontextmanager
async def prepared() -> AsyncGenerator[Setting]:
    """The setting, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as name:
        folder = Path(name)
        server = await ApiServer.prepare(folder / "server", QUIET)
        try:
            await server.start()
            async with filled_sea(server.kubeconfig, "default", folder, OBJECTS) as sea:
                manager, journal = await sea.start("only")
                yield Setting(sea, manager.pid, journal)
        finally:
            await server.stop()
