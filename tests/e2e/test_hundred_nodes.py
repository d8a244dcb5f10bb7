"""Operations of a control plane on pods with 100 nodes and 50 requests per second.

Three of the nodes are real kubelets. KWOK keeps the others ready.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import pytest
from capelin.api.core import ConfigMap, Node
from capelin.client import Client, Config
from capelin.controller import ObjectKey
from capelin.testing.waiting import until
from capelin_control_plane.operations.rotation import DROP_ANNOTATION, ROTATE_ANNOTATION
from capelin_embedded.binaries import Binaries
from capelin_machine_pool.api import Simulated
from capelin_machine_pool.backends.kwok import KwokProcesses
from capelin_machine_pool.backends.simulated import node_manifest
from capelin_machine_pool.desired import Instance

from tests.faults.http2 import Http2Load

from .conftest import VERSIONS
from .hosted import Hosted, met_the_end_of_a_leader, renew_certificates
from .machines import (
    KUBECTL,
    POD_CIDR,
    addons,
    containers,
    docker,
    join,
    machines,
    node_is_ready,
    run_pods,
    use,
)
from .test_real_nodes import commands_of_the_page, rotation

NEW = VERSIONS[-1]
NODES, KUBELETS = 100, 3
REQUESTS_PER_SECOND, CLIENTS = 50, 10
MOST_FAILED = 0.001
"""The share of requests that may fail with status 500 while members of etcd restart."""
REPLICAS = 2
Record = Callable[[str, object], None]

pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.needs_programs("kwok", f"kubectl@{KUBECTL}"),
]


@dataclass
class PacedLoad(Http2Load):
    """Sends requests at a constant rate, if the API answers in time."""

    _next: float = 0.0

    async def _request(self, method: str, path: str, content: object = None) -> bool:
        now = monotonic()
        self._next = max(self._next + CLIENTS / REQUESTS_PER_SECOND, now)
        await asyncio.sleep(self._next - now)
        return await super()._request(method, path, content)


@dataclass
class Loads:
    """Clients over HTTP/2, most of them with connections that stay."""

    clients: list[PacedLoad]
    began: float

    @classmethod
    def of(cls, config: Config, phase: str) -> "Loads":
        # Two clients open a connection for each request.
        made = [
            PacedLoad(config, keeps=index > 1, prefix=f"{phase}-{index}")
            for index in range(CLIENTS)
        ]
        return cls(made, monotonic())

    @property
    def failed(self) -> list[str]:
        return [failure for client in self.clients for failure in client.failed]

    @property
    def sent(self) -> int:
        return sum(client.sent for client in self.clients)

    @property
    def written(self) -> set[str]:
        return {name for client in self.clients for name in client.written}


@asynccontextmanager
async def under_load(hosted: Hosted, phase: str, record: Record) -> AsyncGenerator[None]:
    """Fifty requests per second within the context. None fails, and all writes still exist."""
    loads = Loads.of(Config.from_kubeconfig(await hosted.kubeconfig()), phase)
    tasks = [asyncio.create_task(client.run()) for client in loads.clients]
    try:
        yield
        for client in loads.clients:
            await client.reaches(client.sent + 10)
    finally:
        seconds = monotonic() - loads.began
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    record(f"requests, {phase} CAs", loads.sent)
    record(f"requests per second, {phase} CAs", round(loads.sent / seconds, 1))
    # A write that etcd has not accepted when a member stops: see docs/figures.md.
    of_etcd = [failure for failure in loads.failed if met_the_end_of_a_leader(failure)]
    record(f"answered 500 while etcd restarted, {phase} CAs", len(of_etcd))
    assert len(of_etcd) <= loads.sent * MOST_FAILED, of_etcd[:5]
    others = [failure for failure in loads.failed if failure not in of_etcd]
    assert not others, (len(others), others[:5])
    async with hosted.workload() as workload:
        kept = {found.name async for found in workload.iterate(ConfigMap, "default")}
    assert loads.written - kept == set()


@asynccontextmanager
async def simulated_nodes(
    hosted: Hosted, workload: Client, count: int, folder: Path
) -> AsyncGenerator[KwokProcesses]:
    """Nodes without kubelets, and the process that keeps them ready."""
    kwok = KwokProcesses(folder, Binaries())
    cluster = key_of(hosted)
    try:
        await kwok.ensure(cluster, await hosted.kubeconfig())
        # Pods of the DaemonSets for Linux would wait for kubelets.
        settings = Simulated(labels={"kubernetes.io/os": "simulated"})
        now = datetime.now(UTC)
        for number in range(count):
            name = f"simulated-{number}"
            key, provider_id = ObjectKey(hosted.namespace, name), f"simulated:///{name}"
            instance = Instance(
                key=key,
                cluster=hosted.name,
                provider_id=provider_id,
                version=NEW,
                failure_domain=None,
                created=now,
                simulated=settings,
            )
            await workload.create(node_manifest(instance, now), resource=Node.resource)
        yield kwok
    finally:
        await kwok.stop(cluster)


def key_of(hosted: Hosted) -> ObjectKey:
    return ObjectKey(hosted.namespace, hosted.name)


async def are_ready(workload: Client) -> bool:
    nodes = (await workload.list(Node)).items
    return len(nodes) == NODES and all(map(node_is_ready, nodes))


def moment() -> str:
    return datetime.now(UTC).isoformat()


async def test_no_request_fails_in_operations_with_a_hundred_nodes(
    hosted: Hosted, tmp_path: Path, record_property: Record
) -> None:
    began = monotonic()

    def record(text: str) -> None:
        nonlocal began
        record_property(f"seconds: {text}", round(monotonic() - began, 1))
        began = monotonic()

    await hosted.create(
        NEW,
        replicas=REPLICAS,
        network={"pods": {"cidrBlocks": [POD_CIDR]}},
        addons=addons(hosted.kind),
    )
    await hosted.settles()
    async with hosted.workload() as workload, machines(hosted.kind, KUBELETS) as names:
        await join(hosted, workload, names)
        await run_pods(hosted, workload, names)
        async with simulated_nodes(hosted, workload, NODES - KUBELETS, tmp_path / "kwok") as kwok:
            await until(lambda: are_ready(workload), within=240)
            before = await containers(workload)
            record("created")
            async with under_load(hosted, "first", record_property):
                await hosted.change(etcd={"replicas": 3})
                await hosted.settles()
                record("1 to 3 members of etcd")
                await renew_certificates(hosted)
                await hosted.settles()
                record("certificates renewed")
                await hosted.annotate(ROTATE_ANNOTATION, moment())
                await until(lambda: rotation(hosted), lambda text: "stage 3" in text, within=600)
                record("all CAs and keys rotated, until clients are awaited")
            await kwok.ensure(key_of(hosted), await hosted.kubeconfig())
            commands = ("bash", "-euc", commands_of_the_page("CLIENT="))
            for name in names:
                await docker("exec", "--workdir=/root", name, *commands)
            async with under_load(hosted, "new", record_property):
                await hosted.annotate(DROP_ANNOTATION, moment())
                waiting = "Waiting for tokens of pods, until"
                await until(lambda: rotation(hosted), lambda text: waiting in text, within=400)
                record("clients ready for the end of the rotation")
                # Tokens of pods are valid for an hour.
                await hosted.annotate(DROP_ANNOTATION, f"force@{moment()}")
                await until(lambda: rotation(hosted), lambda text: not text, within=400)
                record("old CAs and keys dropped")
                await hosted.change(etcd={"replicas": 1})
                await hosted.settles()
                record("3 to 1 members of etcd")
            async with hosted.workload() as renewed:
                await until(lambda: are_ready(renewed), within=120)
                assert await containers(renewed) == before
                await use(hosted, renewed, KUBELETS, tmp_path)
