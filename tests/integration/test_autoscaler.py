"""The real cluster autoscaler scales pools of Capelin from zero and to zero.

Not every Go proxy offers its module, so `CAPELIN_CLUSTER_AUTOSCALER` names the program:
`docs/testing.md` describes its build.
"""

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from subprocess import STDOUT, Popen
from typing import Any

import pytest
from capelin.api.capi import MachineDeployment
from capelin.api.core import Deployment, Pod, Secret
from capelin.client import Client, Config
from capelin.contract import KUBECONFIG_KEY
from capelin.testing.waiting import until
from capelin_embedded.addresses import free_port
from capelin_embedded.testing.management import ManagementCluster

from .deployments import DEPLOYED, deployment_manifests
from .pools import VERSION, Whole, is_ready, pool_manifests, whole_cluster

PROGRAM = os.environ.get("CAPELIN_CLUSTER_AUTOSCALER", "")
SIZES = "cluster.x-k8s.io/cluster-api-autoscaler-node-group"
ANNOTATIONS = {f"{SIZES}-min-size": "0", f"{SIZES}-max-size": "3"}
QUICK = {
    "scan-interval": "2s",
    "scale-down-unneeded-time": "4s",
    "scale-down-delay-after-add": "4s",
    "scale-down-delay-after-delete": "1s",
    "new-pod-scale-up-delay": "0s",
}
"""Seconds instead of the default minutes."""

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PROGRAM, reason="CAPELIN_CLUSTER_AUTOSCALER names no program"),
]


@pytest.fixture(scope="module")
async def whole(
    management_cluster: ManagementCluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Whole]:
    """A cluster with an autoscaler, shared by the tests of this module."""
    folder = tmp_path_factory.mktemp("autoscaler")
    async with (
        Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as management,
        # CoreDNS would need a node.
        whole_cluster(management, "scaled", addons={"coreDNS": {"enabled": False}}) as whole,
    ):
        secret = await management.get(Secret, f"{whole.name}-kubeconfig", whole.namespace)
        workload = folder / "workload"
        workload.write_bytes(secret.data[KUBECONFIG_KEY])
        with autoscaler(folder, workload, management_cluster.kubeconfig, whole.namespace):
            yield whole


@contextmanager
def autoscaler(
    folder: Path, workload: Path, management: Path, namespace: str
) -> Generator[Popen[bytes]]:
    """A running autoscaler, whose log is a file of the folder."""
    options = {
        **QUICK,
        "cloud-provider": "clusterapi",
        "cloud-config": management,
        "kubeconfig": workload,
        "clusterapi-cloud-config-authoritative": "true",
        "node-group-auto-discovery": f"clusterapi:namespace={namespace}",
        "leader-elect": "false",
        "address": f"127.0.0.1:{free_port('127.0.0.1')}",
        "v": "4",
    }
    command = [PROGRAM, *(f"--{name}={value}" for name, value in options.items())]
    with (folder / "log").open("wb") as log, Popen(command, stdout=log, stderr=STDOUT) as process:
        try:
            yield process
        finally:
            process.terminate()


def pods(replicas: int) -> dict[str, Any]:
    """A Deployment whose pods fill a machine each."""
    labels = {"app": "large"}
    container = {
        "name": "large",
        "image": "large",
        "resources": {"requests": {"cpu": "3", "memory": "1Gi"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "large", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


async def run(whole: Whole, replicas: int) -> None:
    """Run so many pods, and wait until as many nodes exist and every pod runs."""
    await whole.workload.apply(pods(replicas))

    async def fits() -> bool:
        running = [
            pod
            for pod in (await whole.workload.list(Pod, "default")).items
            if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
        ]
        nodes = await whole.nodes()
        return len(running) == len(nodes) == replicas and all(map(is_ready, nodes))

    await until(fits, within=180)


async def test_a_pool_follows_its_pods_from_zero_and_to_zero(whole: Whole) -> None:
    manifests = pool_manifests(whole.name, whole.namespace, replicas=0)
    manifests[-1]["metadata"]["annotations"] = ANNOTATIONS
    for manifest in manifests:
        await whole.management.apply(manifest)
    await run(whole, 3)
    await until(lambda: whole.is_whole(3, VERSION))
    await run(whole, 1)
    # The autoscaler keeps the machine whose pod still runs.
    (pod,) = (await whole.workload.list(Pod, "default")).items
    assert [node.name for node in await whole.nodes()] == [pod.spec.node_name]
    await run(whole, 0)
    assert (await whole.pool()).spec.replicas == 0
    await whole.workload.delete(Deployment, "large", "default")
    await whole.remove_pool()


async def test_a_deployment_of_machines_follows_its_pods_from_zero_and_to_zero(
    whole: Whole,
) -> None:
    manifests = deployment_manifests(whole, 0)
    manifests[-1]["metadata"]["annotations"] = ANNOTATIONS
    for manifest in manifests:
        await whole.management.apply(manifest)
    await run(whole, 2)
    await run(whole, 0)
    deployment = await whole.management.get(MachineDeployment, DEPLOYED, whole.namespace)
    assert deployment.spec.replicas == 0
    await whole.workload.delete(Deployment, "large", "default")
    await whole.management.delete(MachineDeployment, DEPLOYED, whole.namespace)
