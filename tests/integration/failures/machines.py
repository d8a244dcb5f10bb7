"""Clusters whose machines do not start, or do not stay healthy."""

from typing import Any

from capelin.api.capi import MachineDeployment
from capelin_machine_pool.api import CapelinMachinePool

from tests.integration.pools import OLDER, POOL, pool_manifests, reference

from .scene import (
    CREATOR,
    INFRASTRUCTURE,
    PAUSED,
    PAUSER,
    SECRET_CREATOR,
    TEMPLATE_CREATOR,
    WORKERS,
    Scene,
    failure,
)

KUBELET = "the kubelet of the machine"
DIES = {"dies": 100, "afterSeconds": 10}
"""Kubernetes waits 50 seconds more for heartbeats."""


@failure("TemplateMissing", "CapelinMachineTemplate md", TEMPLATE_CREATOR)
async def missing_template(scene: Scene) -> None:
    await scene.ready()
    workers = scene.workers()
    await scene.apply(workers.bootstrap, workers.deployment)


@failure("SecretMissing", "Secret files", SECRET_CREATOR)
async def missing_bootstrap_secret(scene: Scene) -> None:
    await scene.ready()
    source = {"contentFrom": {"secret": {"name": "files", "key": "a"}}}
    await scene.add(scene.workers(bootstrap={"files": [{"path": "/etc/a", **source}]}))


@failure("Reported", "CapelinMachine md", INFRASTRUCTURE)
async def machine_never_boots(scene: Scene) -> None:
    await scene.ready()
    await scene.add(scene.workers({"neverBoots": 100}))


@failure("KubeletStopped", "Node md", KUBELET)
async def machine_dies(scene: Scene) -> None:
    await scene.ready()
    await scene.add(scene.workers(DIES))


@failure("Reported", "CapelinMachine md", INFRASTRUCTURE)
async def forbidden_backend(scene: Scene) -> None:
    await scene.ready()
    workers = scene.workers()
    workers.infrastructure["spec"]["template"]["spec"] = {"backend": "Containers"}
    await scene.add(workers)


@failure("Paused", "MachineDeployment md", PAUSER)
async def paused_workers(scene: Scene) -> None:
    await scene.with_workers()
    patch = {"metadata": {"annotations": PAUSED}, "spec": {"replicas": 2}}
    await scene.client.patch(MachineDeployment, WORKERS, scene.name, patch)


@failure("TemplateMissing", "KubeadmConfigTemplate md", TEMPLATE_CREATOR)
async def missing_bootstrap_template(scene: Scene) -> None:
    await scene.ready()
    workers = scene.workers()
    await scene.apply(workers.infrastructure, workers.deployment)


@failure("KindNotServed", "TunaMachineTemplate md", "the administrator of the management cluster")
async def unknown_machine_kind(scene: Scene) -> None:
    await scene.ready()
    workers = scene.workers()
    tuna = reference("infrastructure", "TunaMachineTemplate", WORKERS)
    workers.machine["spec"]["infrastructureRef"] = tuna
    await scene.add(workers)


@failure("Paused", "Machine md", PAUSER)
async def paused_machine(scene: Scene) -> None:
    await scene.ready()
    workers = scene.workers()
    workers.machine["metadata"] = {"annotations": PAUSED}
    await scene.add(workers)


@failure("Paused", "CapelinMachine md", PAUSER)
async def paused_infrastructure_of_a_machine(scene: Scene) -> None:
    await scene.ready()
    workers = scene.workers()
    workers.infrastructure["spec"]["template"]["metadata"] = {"annotations": PAUSED}
    await scene.add(workers)


@failure("Paused", "KubeadmConfig md", PAUSER)
async def paused_bootstrap_of_a_machine(scene: Scene) -> None:
    await scene.ready()
    workers = scene.workers()
    workers.bootstrap["spec"]["template"]["metadata"] = {"annotations": PAUSED}
    await scene.add(workers)


@failure("PreflightCheck", "MachineSet md", "you")
async def workers_newer_than_the_control_plane(scene: Scene) -> None:
    await scene.create(control_plane={"version": OLDER})
    await scene.settles()
    await scene.add(scene.workers())


@failure("RemediationStopped", "MachineHealthCheck all", "you")
async def stopped_remediation(scene: Scene) -> None:
    await scene.ready()
    unhealthy = [{"type": "Ready", "status": "Unknown", "timeoutSeconds": 1}]
    await scene.apply(
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "MachineHealthCheck",
            "metadata": {"name": "all", "namespace": scene.name},
            "spec": {
                "clusterName": scene.name,
                "selector": {"matchLabels": {"cluster.x-k8s.io/cluster-name": scene.name}},
                "checks": {"unhealthyNodeConditions": unhealthy},
                "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": "0%"}},
            },
        }
    )
    await scene.add(scene.workers(DIES))


async def add_pool(scene: Scene, leave_out: str = "", **settings: Any) -> None:
    for manifest in pool_manifests(scene.name, scene.name, replicas=1, **settings):
        if manifest["kind"] != leave_out:
            await scene.apply(manifest)


@failure("ObjectMissing", f"CapelinMachinePool {POOL}", CREATOR)
async def pool_without_infrastructure(scene: Scene) -> None:
    await scene.ready()
    await add_pool(scene, leave_out="CapelinMachinePool")


@failure("ObjectMissing", f"KubeadmConfig {POOL}", CREATOR)
async def pool_without_bootstrap_config(scene: Scene) -> None:
    await scene.ready()
    await add_pool(scene, leave_out="KubeadmConfig")


@failure("Reported", "CapelinMachine workers", INFRASTRUCTURE)
async def pool_machine_never_boots(scene: Scene) -> None:
    await scene.ready()
    simulated = {"startupSeconds": 0, "faults": {"neverBoots": 100}}
    await add_pool(scene, spec={"simulated": simulated})


@failure("Paused", f"CapelinMachinePool {POOL}", PAUSER)
async def paused_pool(scene: Scene) -> None:
    await scene.ready()
    manifests = pool_manifests(scene.name, scene.name, replicas=1)
    for manifest in manifests:
        if manifest["kind"] == CapelinMachinePool.resource.kind:
            manifest["metadata"] = {**manifest["metadata"], "annotations": PAUSED}
        await scene.apply(manifest)
