"""Control planes on the pods of a real cluster: made, changed under load, mended, deleted."""

from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import uuid4

import pytest
from capelin.api.core import ConfigMap, Namespace, Pod
from capelin.client import Client, Config, TooManyRequests
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backends.pods import PodsBackend
from capelin_control_plane.reconciler import CapelinControlPlaneReconciler

from .conftest import VERSIONS
from .hosted import Hosted, under_load
from .kind_cluster import KindCluster

OLD, NEW = VERSIONS

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
async def hosted(kind: KindCluster) -> AsyncGenerator[Hosted]:
    """A control plane that is not made yet, and the provider that will."""
    config = Config.from_kubeconfig(kind.kubeconfig)
    namespace = f"e2e-{uuid4().hex[:8]}"
    async with Client(config, manager="e2e") as client:
        await client.create(Namespace.of(namespace))
        reconciler = CapelinControlPlaneReconciler({"Pods": PodsBackend(Client(config))})
        async with running(reconciler, config=config, namespace=namespace):
            hosted = Hosted(kind, client, namespace, "one")
            yield hosted
            if await client.find(CapelinControlPlane, "one", namespace) is not None:
                await client.delete(CapelinControlPlane, "one", namespace)
                await until(lambda: _is_gone(hosted), within=120)
        await client.delete(Namespace, namespace)


async def _is_gone(hosted: Hosted) -> bool:
    found = await hosted.client.find(CapelinControlPlane, hosted.name, hosted.namespace)
    return found is None


async def test_no_request_fails_while_it_is_scaled_upgraded_renewed_and_evicted(
    hosted: Hosted, tmp_path: Path
) -> None:
    await hosted.create(OLD, replicas=2)
    await hosted.settles()
    async with under_load(hosted, tmp_path) as failed:
        await hosted.change(version=NEW)
        await hosted.settles()
        assert failed() == []
        await hosted.change(replicas=3)
        await hosted.settles()
        await hosted.change(replicas=2)
        await hosted.settles()
        assert failed() == []
        for pod in await hosted.pods():
            if "etcd" not in pod.name:
                await _evict(hosted, pod)
        await hosted.settles()
        assert failed() == []
    assert failed() == []


async def _evict(hosted: Hosted, pod: Pod) -> None:
    async def is_evicted() -> bool:
        try:
            await hosted.client.evict(pod.name, hosted.namespace)
        except TooManyRequests:
            # Its budget does not allow it yet.
            return False
        return True

    await until(is_evicted, within=240)


@pytest.mark.parametrize("damage", ["deleted", "corrupted"])
async def test_an_etcd_member_without_its_data_is_replaced(hosted: Hosted, damage: str) -> None:
    await hosted.create(NEW, etcd={"replicas": 3})
    await hosted.settles()
    async with hosted.workload() as workload:
        await workload.create(ConfigMap.of("kept", "default", data={"a": "b"}))
    path = f"/var/local-path-provisioner/*_{hosted.namespace}_data-one-etcd-1"
    if damage == "deleted":
        hosted.kind.on_node("sh", "-c", f"rm -rf {path}/data")
    else:
        hosted.kind.on_node(
            "sh",
            "-c",
            f"for f in {path}/data/member/wal/*.wal; do"
            " dd if=/dev/urandom of=$f bs=4096 count=4 conv=notrunc; done",
        )
    before = next(pod for pod in await hosted.pods("etcd") if pod.name == "one-etcd-1")
    await hosted.client.delete(Pod, before.name, hosted.namespace)

    async def is_replaced() -> bool:
        pods = {pod.name: pod for pod in await hosted.pods("etcd")}
        member = pods.get("one-etcd-1")
        return (
            member is not None
            and member.uid != before.uid
            and await hosted.is_settled()
            and (await hosted.conditions())["EtcdClusterAvailable"] == "True"
            and all(
                any(
                    state.type == "Ready" and state.status == "True"
                    for state in pod.status.conditions
                )
                for pod in pods.values()
            )
        )

    await until(is_replaced, within=300)
    async with hosted.workload() as workload:
        assert (await workload.get(ConfigMap, "kept", "default")).data == {"a": "b"}


async def test_nothing_is_left_of_a_deleted_control_plane(hosted: Hosted) -> None:
    await hosted.create(NEW)
    await hosted.settles()
    await hosted.client.delete(CapelinControlPlane, hosted.name, hosted.namespace)
    await until(lambda: _is_gone(hosted), within=120)
    left = hosted.kind.on_node(
        "kubectl",
        "--kubeconfig=/etc/kubernetes/admin.conf",
        f"--namespace={hosted.namespace}",
        "get",
        "all,secret,configmap,pdb,netpol,pvc",
        "--selector=app.kubernetes.io/managed-by=capelin-control-plane",
        "--output=name",
    )
    assert left == ""
