"""`clusterctl move` of a control plane on pods, with a real kubelet and a client that writes.

The commands are those of docs/how-to/move.md. Cluster API's managers do not run: the test sets the
status of the Cluster as they do.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Secret
from capelin.client import Config, read_endpoints
from capelin.contract import (
    BLOCK_MOVE_ANNOTATION,
    CLUSTERCTL_LABEL,
    MOVE_LABEL,
    find_condition,
)
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.desired.control_plane import MOVE_ANNOTATION
from capelin_control_plane.operations.move_phases import MOVABLE

from tests.faults.http2 import Http2Load
from tests.s3.versitygw import SECRET_DATA, VERSITYGW, S3Server

from .conftest import VERSIONS, namespace_in
from .hosted import Hosted
from .how_to_pages import run_block
from .kind_cluster import KindCluster
from .machines import (
    KUBECTL,
    POD_CIDR,
    Nodes,
    addons,
    are_ready,
    join,
    machines,
    run_pods,
    use,
)
from .management_clusters import (
    PortableEndpoint,
    destination,
    is_restored,
    load_image,
    management_cluster,
    portable_endpoint,
    provider,
)

pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.needs_programs(VERSITYGW, "clusterctl", f"kubectl@{KUBECTL}"),
]
NEW = VERSIONS[-1]


@dataclass
class Writer(Http2Load):
    """A client that writes about twenty times in a second, with the time of each success."""

    times: list[float] = field(default_factory=list[float])

    async def _request(self, method: str, path: str, content: object = None) -> bool:
        is_done = await super()._request(method, path, content)
        if is_done and method == "POST":
            self.times.append(monotonic())
        return is_done

    def longest_pause(self) -> float:
        """The longest time between two writes that succeeded."""
        return max(later - earlier for earlier, later in pairwise(self.times))


@dataclass
class Page:
    """The commands of the page, with the values of its variables."""

    source: Hosted
    target: Hosted

    async def run(self, contained: str) -> None:
        """Run the block that contains a command."""
        values = {
            "KUBECONFIG": str(self.source.kind.kubeconfig),
            "SOURCE": str(self.source.kind.kubeconfig),
            "TARGET": str(self.target.kind.kubeconfig),
            "NAMESPACE": self.source.namespace,
            "CLUSTER": self.source.name,
            "CONTROL_PLANE": self.source.name,
        }
        await run_block("move.md", contained, values, self.source.kind.kubeconfig.parent)


async def prepare_for_clusterctl(kind: KindCluster) -> None:
    """Label the CRDs like clusterctl, so that it finds their objects."""
    labels = {
        "clusters.cluster.x-k8s.io": {
            "cluster.x-k8s.io/provider": "cluster-api",
            "cluster.x-k8s.io/v1beta1": "v1beta1",
            "cluster.x-k8s.io/v1beta2": "v1beta2",
        }
    }
    listed = kind.kubectl("get", "crd", "-o", "name").split()
    for crd in listed:
        if crd.endswith("cluster.x-k8s.io"):
            name = crd.rpartition("/")[2]
            more = [f"{label}={value}" for label, value in labels.get(name, {}).items()]
            kind.kubectl("label", "--overwrite", crd, f"{CLUSTERCTL_LABEL}=", *more)


async def set_cluster_status(hosted: Hosted) -> None:
    """Report what clusterctl requires of a Cluster, like core."""
    now = datetime.now(UTC).isoformat()
    condition = {
        "type": "ControlPlaneInitialized",
        "status": "True",
        "reason": "Initialized",
        "message": "",
        "lastTransitionTime": now,
    }
    status = {
        "initialization": {"infrastructureProvisioned": True, "controlPlaneInitialized": True},
        "conditions": [condition],
    }
    await hosted.client.patch(
        Cluster, hosted.name, hosted.namespace, {"status": status}, subresource="status"
    )


async def exists(hosted: Hosted) -> bool:
    found = await hosted.client.find(CapelinControlPlane, hosted.name, hosted.namespace)
    return found is not None


async def movable(hosted: Hosted) -> str:
    status = (await hosted.get()).status
    condition = find_condition(status.conditions if status else [], MOVABLE)
    return "" if condition is None else f"{condition.reason}: {condition.message}"


async def create(hosted: Hosted, endpoint: PortableEndpoint, server: S3Server) -> None:
    """Create a control plane with backups, and wait until clusterctl could move it."""
    await endpoint.lead_to(hosted.kind)
    keys = Secret.of("backup-key", hosted.namespace, data={"key": b"k" * 32})
    await hosted.client.create(keys)
    await hosted.client.create(Secret.of("credentials", hosted.namespace, data=SECRET_DATA))
    backup = {"destination": destination(server), "encryptionKey": {"name": "backup-key"}}
    await hosted.create(
        NEW,
        network={"pods": {"cidrBlocks": [POD_CIDR]}},
        addons=addons(hosted.kind),
        controlPlaneEndpoint=endpoint.spec,
        etcd={"backup": backup},
    )
    await hosted.settles()
    await set_cluster_status(hosted)
    assert BLOCK_MOVE_ANNOTATION in (await hosted.get()).metadata.annotations


async def test_a_control_plane_moves_with_its_nodes_and_all_acknowledged_writes(
    server: S3Server, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    stores = Stores(None, read_endpoints(server.endpoint))
    async with (
        management_cluster(tmp_path / "first") as first,
        management_cluster(tmp_path / "second") as second,
        namespace_in(first) as source,
        namespace_in(second) as other,
        portable_endpoint() as endpoint,
        machines(first, 1) as names,
        provider(source, stores, load_image(first)),
        provider(target := replace(other, namespace=source.namespace), stores, load_image(second)),
    ):
        for kind in (first, second):
            await prepare_for_clusterctl(kind)
        await create(source, endpoint, server)
        async with source.workload() as workload:
            await join(source, workload, names)
            await run_pods(source, workload, names)
            before = await Nodes.read(workload)
        kubeconfig, page = await source.kubeconfig(), Page(source, target)
        writer = Writer(Config.from_kubeconfig(kubeconfig), pause=0.05, keeps=True)
        writing = asyncio.create_task(writer.run())
        # Without the label, clusterctl would leave the Secrets behind.
        await source.annotate(MOVE_ANNOTATION, datetime.now(UTC).isoformat())
        await until(lambda: movable(source), lambda text: "secret backup-key" in text, within=30)
        await page.run("kubectl label")
        await page.run("kubectl annotate")
        await writer.reaches(writer.sent + 40)

        began = monotonic()

        def record(text: str) -> None:
            record_property(f"seconds until {text}", round(monotonic() - began, 1))

        moving = asyncio.create_task(page.run("clusterctl move"))
        await until(lambda: exists(target), within=240)
        record("the objects have moved")
        await endpoint.lead_to(second)
        await moving
        await until(lambda: is_restored(target), within=240)
        record("the data is restored")
        await writer.reaches(writer.sent + 40)
        await target.settles()
        async with target.workload() as workload:
            await until(lambda: are_ready(workload, 1), within=120)
            record("Nodes are ready")
            after = await Nodes.read(workload)
            assert after.uids == before.uids
            assert before.containers.items() <= after.containers.items()
            await use(target, workload, 1, tmp_path)
            written = set(writer.written)
            kept = {found.name for found in (await workload.list(ConfigMap, "default")).items}
            assert written - kept == set()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        record_property("acknowledged writes", len(writer.written))
        record_property("seconds without a write", round(writer.longest_pause(), 1))
        assert await target.kubeconfig() == kubeconfig
        # It can move again, after another request.
        annotations = (await target.get()).metadata.annotations
        assert BLOCK_MOVE_ANNOTATION in annotations
        assert MOVE_ANNOTATION not in annotations
        await check_source(source, page)
        await target.delete_all()


async def check_source(source: Hosted, page: Page) -> None:
    """Only volumes and the state of etcd remain, until a person deletes them."""
    assert not await exists(source)
    assert await source.pods() == []
    left = await remains(source)
    assert any(name.startswith("persistentvolumeclaim/data-one-etcd-0") for name in left), left
    assert not any(name.startswith(("pod/", "service/")) for name in left), left
    await page.run("kubectl delete")
    await until(lambda: remains(source), lambda names: not names, within=60)


async def remains(hosted: Hosted) -> list[str]:
    """The remaining objects of the control plane."""
    left = await asyncio.to_thread(hosted.kind.left_in, hosted.namespace)
    return [name for name in left if "one-" in name]


async def test_providers_that_die_before_a_move_lose_no_write_and_continue_here(
    unmanaged: Hosted, server: S3Server, record_property: Callable[[str, object], None]
) -> None:
    hosted, image = unmanaged, load_image(unmanaged.kind)
    stores = Stores(None, read_endpoints(server.endpoint))
    labels = {MOVE_LABEL: ""}
    for name, data in (("backup-key", {"key": b"k" * 32}), ("credentials", SECRET_DATA)):
        secret = Secret.of(name, hosted.namespace, data=data)
        secret.metadata.labels = labels
        await hosted.client.create(secret)
    backup = {"destination": destination(server), "encryptionKey": {"name": "backup-key"}}
    async with provider(hosted, stores, image):
        await hosted.create(
            NEW,
            replicas=2,
            pods={"exposure": {"type": "NodePort"}},
            etcd={"replicas": 3, "backup": backup},
        )
        await hosted.settles()
        await hosted.annotate(MOVE_ANNOTATION, datetime.now(UTC).isoformat())
        # An address of a node cannot move, unless the user declares that it can.
        await until(lambda: movable(hosted), lambda text: "MoveRefused" in text, within=30)
        await hosted.change(pods={"exposure": {"type": "NodePort", "portable": True}})
        await until(lambda: movable(hosted), lambda text: "MoveRequested" in text, within=60)
    writer = Writer(Config.from_kubeconfig(await hosted.kubeconfig()), pause=0.05)
    writing = asyncio.create_task(writer.run())
    await writer.reaches(60)
    await pause(hosted, paused=True)
    lives = 0
    while BLOCK_MOVE_ANNOTATION in (await hosted.get()).metadata.annotations:
        async with provider(hosted, stores, image):
            # Each provider lives a little longer than the one before.
            await asyncio.sleep(0.3 + 0.2 * lives)
        lives += 1
        assert lives < 60
    record_property("providers", lives)
    assert [pod.name for pod in await hosted.pods()] == []
    await pause(hosted, paused=False)
    async with provider(hosted, stores, image):
        await hosted.settles()
        async with hosted.workload() as workload:
            kept = {found.name for found in (await workload.list(ConfigMap, "default")).items}
        assert set(writer.written) - kept == set()
        assert await is_restored(hosted)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await hosted.delete_all()
    assert lives > 2


async def pause(hosted: Hosted, *, paused: bool) -> None:
    await hosted.client.patch(
        Cluster, hosted.name, hosted.namespace, {"spec": {"paused": paused or None}}
    )
