"""Clusters, or their machines, whose deletion waits."""

from capelin.api.capi import Cluster
from capelin_machine_pool.api import CapelinCluster, CapelinMachine

from .scene import Scene, failure, protected_pod, run_pod, silent_webhook


@failure("DisruptionBudget", "PodDisruptionBudget web", "the owner of the PodDisruptionBudget")
async def disruption_budget(scene: Scene) -> None:
    await scene.with_workers()
    async with scene.workloads.client(scene.name, scene.name) as workload:
        await protected_pod(workload)
    await scene.delete_machine()


async def delete_with_hook(scene: Scene, step: str) -> None:
    await scene.ready()
    workers = scene.workers()
    key = f"{step}.delete.hook.machine.cluster.x-k8s.io/storage"
    workers.machine["metadata"] = {"annotations": {key: "storage-team"}}
    await scene.add(workers)
    await scene.settles()
    await scene.delete_machine()


@failure("DeletionHook", "Machine md", "storage-team")
async def deletion_hook(scene: Scene) -> None:
    await delete_with_hook(scene, "pre-terminate")


@failure("DeletionHook", "Machine md", "storage-team")
async def drain_hook(scene: Scene) -> None:
    await delete_with_hook(scene, "pre-drain")


@failure("WebhookFails", "Webhook evictions.example.com", "the administrator of the webhook")
async def silent_webhook_of_evictions(scene: Scene) -> None:
    await scene.with_workers()
    async with scene.workloads.client(scene.name, scene.name) as workload:
        await run_pod(workload)
        await workload.apply(silent_webhook("evictions", "", "pods/eviction"))
    await scene.delete_machine()


@failure("Finalizer", "CapelinCluster {name}", "the owner of the finalizer example.com/keep")
async def finalizer_of_a_deleted_cluster(scene: Scene) -> None:
    await scene.ready()
    await scene.keep(CapelinCluster, scene.name)
    await scene.client.delete(Cluster, scene.name, scene.name)


@failure("Finalizer", "CapelinMachine md", "the owner of the finalizer example.com/keep")
async def foreign_finalizer(scene: Scene) -> None:
    await scene.with_workers()
    (machine,) = (await scene.client.list(CapelinMachine, scene.name)).items
    await scene.keep(CapelinMachine, machine.name)
    await scene.delete_machine()
