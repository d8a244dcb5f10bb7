"""Control planes in a management cluster of three nodes, of which one is drained or lost."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from capelin.api.core import ConfigMap, Node
from capelin.client import Client, Config
from capelin.testing.waiting import until

from tests.faults.http2 import Http2Load

from .conftest import VERSIONS, namespace_in, prepared, provider_for
from .hosted import Hosted, is_ready, under_load
from .kind_cluster import KindCluster, kind_cluster
from .machines import docker, node_is_ready

NEW = VERSIONS[-1]
ZONE = "topology.kubernetes.io/zone"
REPLICAS = 2
"""Of API servers."""
REPLACE_AFTER = 60
Record = Callable[[str, object], None]

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Generator[KindCluster]:
    """A cluster with three nodes in three zones, all of which run pods."""
    folder = tmp_path_factory.mktemp("kind")
    with kind_cluster(f"three-{uuid4().hex[:6]}", folder, workers=2) as cluster:
        cluster.kubectl("taint", "node", cluster.node, "node-role.kubernetes.io/control-plane-")
        for index, node in enumerate(cluster.nodes):
            cluster.kubectl("label", "node", node, f"{ZONE}=zone-{index}")
        asyncio.run(prepared(cluster, folder))
        yield cluster


@pytest.fixture
async def hosted(three_nodes: KindCluster) -> AsyncGenerator[Hosted]:
    async with namespace_in(three_nodes) as hosted, provider_for(hosted):
        yield hosted
        await hosted.delete_all()


async def create(hosted: Hosted, **placement: object) -> None:
    """Create a control plane with a member of etcd on each node."""
    placement |= {"zones": "Required", "nodes": "Required"}
    pods = {"exposure": {"type": "NodePort"}, "placement": placement}
    await hosted.create(NEW, replicas=REPLICAS, etcd={"replicas": 3}, pods=pods)
    await hosted.settles()
    assert {*(await nodes_of(hosted, "etcd")).values()} == {*hosted.kind.nodes}


async def nodes_of(hosted: Hosted, component: str) -> dict[str, str | None]:
    """By name, the nodes of a component's pods."""
    return {pod.name: pod.spec.node_name for pod in await hosted.pods(component)}


async def victim_of(hosted: Hosted) -> str:
    """A node with an API server, which is not that of the endpoint."""
    nodes = (await nodes_of(hosted, "kube-apiserver")).values()
    return next(node for node in sorted(map(str, nodes)) if node != hosted.kind.node)


async def test_a_drain_fails_no_request_over_http2(
    hosted: Hosted, tmp_path: Path, record_property: Record
) -> None:
    await create(hosted)
    spread, kubectl = await nodes_of(hosted, "etcd"), hosted.kind.kubectl
    node = await victim_of(hosted)
    async with under_load(hosted, tmp_path, most_closed=REPLICAS) as clients:
        began = monotonic()
        drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force")
        selector = f"--pod-selector=app.kubernetes.io/instance={hosted.name}"
        await asyncio.to_thread(kubectl, *drain, selector, "--timeout=300s", seconds=320)
        record_property("seconds of the drain", round(monotonic() - began, 1))
        await clients.make_progress(100)
        left = [pod for pod in await hosted.pods() if pod.spec.node_name == node]
        assert [pod.name for pod in left if is_ready(pod)] == []
        await asyncio.to_thread(kubectl, "uncordon", node)
        await hosted.settles()
        record_property("seconds until all members are back", round(monotonic() - began, 1))
        # It continues with its volume.
        assert await nodes_of(hosted, "etcd") == spread
        await clients.make_progress()
    for name, count in clients.counts().items():
        record_property(name, count)
    failed = clients.failed()
    record_property("failed", len(failed))
    assert [failure for failure in failed if "HTTP/2" in failure] == []


async def test_a_member_leaves_a_lost_node(hosted: Hosted, record_property: Record) -> None:
    await create(hosted, replaceMembersAfterSeconds=REPLACE_AFTER)
    node = await victim_of(hosted)
    before = await nodes_of(hosted, "etcd")
    (lost,) = [name for name, each in before.items() if each == node]
    load = Http2Load(Config.from_kubeconfig(await hosted.kubeconfig()), pause=0.05)
    loading = asyncio.create_task(load.run())
    await load.reaches(100)
    await docker("stop", "--time=0", node)
    began = monotonic()
    try:
        await until(lambda: runs_elsewhere(hosted, lost, node), within=400)
        record_property("seconds until the member has moved", round(monotonic() - began, 1))
        assert len(await nodes_of(hosted, "etcd")) == 3
        await load.reaches(load.sent + 50)
    finally:
        await docker("start", node)
    await until(lambda: is_back(hosted.client, node), within=120)
    await hosted.settles()
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    async with hosted.workload() as workload:
        kept = {found.name for found in (await workload.list(ConfigMap, "default")).items}
    assert load.written - kept == set()
    record_property("acknowledged writes", len(load.written))
    record_property("failed requests", len(load.failed))
    assert (await hosted.conditions())["EtcdClusterAvailable"] == "True"


async def runs_elsewhere(hosted: Hosted, member: str, lost: str) -> bool:
    """Whether a member is ready on another node than the lost one."""
    pods = {pod.name: pod for pod in await hosted.pods("etcd")}
    found = pods.get(member)
    return found is not None and found.spec.node_name not in {None, lost} and is_ready(found)


async def is_back(client: Client, name: str) -> bool:
    return node_is_ready(await client.get(Node, name))
