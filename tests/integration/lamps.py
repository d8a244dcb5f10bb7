"""A provider of lamps that keeps every rule, and for each rule one that breaks it.

As a program, it runs the manager of the reconciler whose name is the first argument.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from capelin.api import Definition, KubernetesVersion, Model, Object, ObjectMeta, kind
from capelin.api.capi import Cluster, Machine
from capelin.api.core import Secret
from capelin.client import Client, ClientError, Config, Expired
from capelin.contract import (
    CLUSTER_NAME_LABEL,
    PAUSED_ANNOTATION,
    SECRET_TYPE,
    WAITING_FOR_BOOTSTRAP_DATA,
    kubeconfig_secret,
    secret_name,
)
from capelin.controller import After, Context, Done, Result, main
from capelin.provider import (
    INFRA_CLUSTER,
    INFRA_MACHINE,
    Blocked,
    ControlPlaneContext,
    ControlPlaneInitialization,
    ControlPlaneReconciler,
    ControlPlaneStatus,
    Endpoint,
    InfraClusterContext,
    InfraClusterReconciler,
    InfraClusterSpec,
    InfraClusterStatus,
    InfraMachineContext,
    InfraMachinePoolContext,
    InfraMachinePoolReconciler,
    InfraMachinePoolSpec,
    InfraMachinePoolStatus,
    InfraMachineReconciler,
    InfraMachineSpec,
    InfraMachineStatus,
    Provider,
    ProviderID,
    VersionCount,
)

INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io"
FOREIGN = "conformance.example.com/kept"
BEAT = "lamps.example.com/beat"


class LampMachineSpec(InfraMachineSpec):
    """Desired state. The provider ID can change, so that a broken provider can change it."""

    provider_id: ProviderID | None = None
    """Identifier of the machine."""


@kind(group=INFRASTRUCTURE, version="v1alpha1", definition=INFRA_CLUSTER)
class LampCluster(Object[InfraClusterSpec, InfraClusterStatus]):
    """A row of lamps."""


@kind(group=INFRASTRUCTURE, version="v1alpha1", definition=INFRA_MACHINE)
class LampMachine(Object[LampMachineSpec, InfraMachineStatus]):
    """A lamp."""


class LampControlPlaneSpec(Model):
    """Desired state."""

    version: KubernetesVersion
    """Kubernetes version."""
    control_plane_endpoint: Endpoint | None = None
    """Address of the API server."""


@kind(
    group="controlplane.cluster.x-k8s.io",
    version="v1alpha1",
    definition=Definition(contracts=("v1beta2",)),
)
class LampControlPlane(Object[LampControlPlaneSpec, ControlPlaneStatus]):
    """A switch, which pretends that the management cluster is the workload cluster."""


class LampClusters(InfraClusterReconciler[LampCluster]):
    async def reconcile_normal(self, ctx: InfraClusterContext, _: LampCluster) -> Result:
        ctx.set_provisioned()
        return Done()


class LampMachines(InfraMachineReconciler[LampMachine]):
    def __init__(self) -> None:
        self.made: set[str] = set()
        """The uids of the machines that were provisioned."""

    async def reconcile_normal(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        result = await self.work(ctx, obj)
        self.made.add(obj.uid)
        return result

    async def work(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        ctx.set_provisioned(provider_id(obj))
        return Done()

    async def reconcile_delete(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        del ctx, obj
        return Done()

    def has_lost_status(self, obj: LampMachine) -> bool:
        return obj.uid in self.made and not self.is_initialized(obj.status)


def provider_id(obj: LampMachine) -> str:
    return f"lamp:///{obj.namespace}/{obj.name}"


# Machines that break one rule


class NeverProvisioned(LampMachines):
    async def work(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        del ctx, obj
        return Done()


class IgnoresInfrastructure(LampMachines):
    def waiting_for(
        self, obj: LampMachine, cluster: Cluster | None, owner: Machine | None
    ) -> Blocked | None:
        if cluster is not None:
            cluster = cluster.model_copy(deep=True)
            cluster.status.initialization.infrastructure_provisioned = True
        return super().waiting_for(obj, cluster, owner)


class IgnoresBootstrapData(LampMachines):
    def waiting_for(
        self, obj: LampMachine, cluster: Cluster | None, owner: Machine | None
    ) -> Blocked | None:
        missing = super().waiting_for(obj, cluster, owner)
        is_data = missing is not None and missing.reason == WAITING_FOR_BOOTSTRAP_DATA
        return None if is_data else missing


class IgnoresPause(LampMachines):
    async def reconcile(self, ctx: Context, obj: LampMachine, /) -> Result:
        if not self.is_initialized(obj.status) and obj.metadata.deletion_timestamp is None:
            obj.metadata.annotations.pop(PAUSED_ANNOTATION, None)
        return await super().reconcile(ctx, obj)


class IgnoresClusterPause(LampMachines):
    async def find_cluster(self, client: Client, obj: LampMachine) -> Cluster | None:
        cluster = await super().find_cluster(client, obj)
        if cluster is not None:
            cluster = cluster.model_copy(deep=True)
            cluster.spec.paused = None
        return cluster


class DeletesWhilePaused(LampMachines):
    async def reconcile(self, ctx: Context, obj: LampMachine, /) -> Result:
        if obj.metadata.deletion_timestamp is not None:
            obj.metadata.annotations.pop(PAUSED_ANNOTATION, None)
        return await super().reconcile(ctx, obj)


class HidesPause(LampMachines):
    async def reconcile(self, ctx: Context, obj: LampMachine, /) -> Result:
        if PAUSED_ANNOTATION in obj.metadata.annotations:
            return Done()
        return await super().reconcile(ctx, obj)


class KeepsStatusInMemory(LampMachines):
    async def work(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        return Done() if self.has_lost_status(obj) else await super().work(ctx, obj)


class AddsFinalizerOnce(LampMachines):
    async def reconcile(self, ctx: Context, obj: LampMachine, /) -> Result:
        is_new = not self.is_initialized(obj.status)
        if is_new or self.finalizer in obj.metadata.finalizers:
            return await super().reconcile(ctx, obj)
        return Done()


class RemovesForeignLabels(LampMachines):
    async def work(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        if FOREIGN in obj.metadata.labels:
            removal = {"metadata": {"labels": {FOREIGN: None}}}
            await ctx.client.patch(LampMachine, obj.name, obj.namespace, removal)
        return await super().work(ctx, obj)


class WritesTime(LampMachines):
    async def work(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        beat = f"{ctx.now():%H%M%S}"
        if obj.metadata.annotations.get(BEAT) != beat:
            annotation = {"metadata": {"annotations": {BEAT: beat}}}
            await ctx.client.patch(LampMachine, obj.name, obj.namespace, annotation)
        await super().work(ctx, obj)
        return After(1)


class StaysWithItsMachine(LampMachines):
    async def reconcile_delete(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        # With its Cluster it goes, so that every check can clean up.
        cluster = await ctx.client.find(Cluster, obj.name, obj.namespace)
        machine = await ctx.client.find(Machine, obj.name, obj.namespace)
        stays = (
            machine is not None
            and machine.metadata.deletion_timestamp is not None
            and cluster is not None
            and cluster.metadata.deletion_timestamp is None
        )
        return After(1) if stays else Done()


class KeepsUnprovisioned(LampMachines):
    async def reconcile(self, ctx: Context, obj: LampMachine, /) -> Result:
        if not self.is_initialized(obj.status):
            if obj.metadata.deletion_timestamp is not None:
                return Done()
            await ctx.add_finalizer(obj, str(self.finalizer))
        return await super().reconcile(ctx, obj)


class ChangesProviderID(LampMachines):
    def __init__(self) -> None:
        super().__init__()
        self.lost: set[str] = set()

    async def work(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        if self.has_lost_status(obj):
            self.lost.add(obj.uid)
        suffix = "-again" if obj.uid in self.lost else ""
        ctx.set_provisioned(f"{provider_id(obj)}{suffix}")
        return Done()


class IdentifiesByUID(LampMachines):
    async def work(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        ctx.set_provisioned(f"lamp:///{obj.uid}")
        return Done()


class GivesUp(LampMachines):
    def __init__(self) -> None:
        super().__init__()
        self.begun: dict[str, bool] = {}
        """Whether the first write of an object was successful, by its uid."""

    async def reconcile(self, ctx: Context, obj: LampMachine, /) -> Result:
        if obj.uid not in self.begun:
            annotation = {"metadata": {"annotations": {BEAT: "begun"}}}
            try:
                await ctx.client.patch(LampMachine, obj.name, obj.namespace, annotation)
                self.begun[obj.uid] = True
            except ClientError:
                self.begun[obj.uid] = False
        is_deleting = obj.metadata.deletion_timestamp is not None
        return await super().reconcile(ctx, obj) if self.begun[obj.uid] or is_deleting else Done()


class EndsWithItsWatch(LampMachines):
    def __init__(self) -> None:
        super().__init__()
        self.is_over = False

    @asynccontextmanager
    async def lifespan(self, ctx: Context) -> AsyncGenerator[None]:
        since = (await ctx.client.list(LampMachine)).resource_version

        async def follow() -> None:
            try:
                async for _ in ctx.client.watch(LampMachine, since=since):
                    pass
            except Expired:
                self.is_over = True

        following = asyncio.create_task(follow())
        try:
            async with super().lifespan(ctx):
                yield
        finally:
            following.cancel()

    async def reconcile(self, ctx: Context, obj: LampMachine, /) -> Result:
        is_ignored = self.is_over and obj.uid not in self.made
        return Done() if is_ignored else await super().reconcile(ctx, obj)


class MakesInstancesOnce(LampMachines):
    """Remembers only in memory which instances it has made. A leader does all the work."""

    def __init__(self) -> None:
        super().__init__()
        self.instances: dict[str, str] = {}

    async def work(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        name = self.instances.setdefault(obj.uid, f"{obj.name}-{uuid4()}")
        if not self.is_initialized(obj.status):
            metadata = ObjectMeta(name=name, namespace=obj.namespace)
            await ctx.client.apply(Secret(metadata=metadata))
        return await super().work(ctx, obj)


class WritesItsProcess(LampMachines):
    async def work(self, ctx: InfraMachineContext, obj: LampMachine) -> Result:
        number = str(os.getpid())
        if obj.metadata.annotations.get(BEAT) != number:
            annotation = {"metadata": {"annotations": {BEAT: number}}}
            await ctx.client.patch(LampMachine, obj.name, obj.namespace, annotation)
        return await super().work(ctx, obj)


BROKEN_PROCESSES: dict[str, type[LampMachines]] = {
    "failed-requests": GivesUp,
    "expired-watches": EndsWithItsWatch,
    "kills": MakesInstancesOnce,
    "two-instances": WritesItsProcess,
}
"""A provider for each rule that needs a manager in a process of its own."""


BROKEN_MACHINES: dict[str, type[LampMachines]] = {
    "move": IdentifiesByUID,
    "milestone": NeverProvisioned,
    "waits-for-infrastructure": IgnoresInfrastructure,
    "waits-for-bootstrap-data": IgnoresBootstrapData,
    "pausing": IgnoresPause,
    "cluster-pause": IgnoresClusterPause,
    "paused-deletion": DeletesWhilePaused,
    "paused-condition": HidesPause,
    "status-rebuilt": KeepsStatusInMemory,
    "finalizers-restored": AddsFinalizerOnce,
    "metadata-kept": RemovesForeignLabels,
    "quiet": WritesTime,
    "deletion": StaysWithItsMachine,
    "early-deletion": KeepsUnprovisioned,
    "provider-id-stable": ChangesProviderID,
}
"""A provider for each rule that machines can break, except the one that needs no manager."""


@kind(group=INFRASTRUCTURE, version="v1alpha1", definition=INFRA_CLUSTER)
class LampMachinePool(Object[InfraMachinePoolSpec, InfraMachinePoolStatus]):
    """A chain of lamps."""


class LampPools(InfraMachinePoolReconciler[LampMachinePool]):
    async def reconcile_normal(self, ctx: InfraMachinePoolContext, obj: LampMachinePool) -> Result:
        count = self.count(ctx.owner.spec.replicas or 0)
        ctx.set_provider_ids(f"lamp:///{obj.namespace}/{obj.name}/{n}" for n in range(count))
        ctx.set_provisioned(replicas=count)
        return Done()

    async def reconcile_delete(self, ctx: InfraMachinePoolContext, obj: LampMachinePool) -> Result:
        del ctx, obj
        return Done()

    def count(self, replicas: int) -> int:
        return replicas


class NeverShrinks(LampPools):
    def count(self, replicas: int) -> int:
        return max(2, replicas)


BROKEN_POOLS: dict[str, type[LampPools]] = {"scaling": NeverShrinks}


class LampControlPlanes(ControlPlaneReconciler[LampControlPlane]):
    def __init__(self) -> None:
        self.made: set[str] = set()
        self.lost: set[str] = set()

    async def reconcile_normal(self, ctx: ControlPlaneContext, obj: LampControlPlane) -> Result:
        if obj.uid in self.made and not self.is_initialized(obj.status):
            self.lost.add(obj.uid)
        config = self.workload_config(ctx.client.config)
        self.publish_endpoint(ctx, config)
        await ctx.client.apply(self.kubeconfig(config, ctx.cluster.name, obj))
        await ctx.client.apply(self.authority(ctx.cluster.name, obj))
        ctx.set_status(self.status(obj))
        self.made.add(obj.uid)
        return Done()

    def workload_config(self, config: Config) -> Config:
        return config

    def publish_endpoint(self, ctx: ControlPlaneContext, config: Config) -> None:
        address = urlsplit(config.server.address)
        ctx.set_endpoint(str(address.hostname), address.port or 443)

    def kubeconfig(self, config: Config, cluster: str, obj: LampControlPlane) -> Secret:
        return kubeconfig_secret(config.flattened(name=cluster), cluster=cluster, owner=obj)

    def authority(self, cluster: str, obj: LampControlPlane) -> Secret:
        metadata = ObjectMeta(
            name=secret_name(cluster, "ca"),
            namespace=obj.namespace,
            labels={CLUSTER_NAME_LABEL: cluster},
        )
        data = {"tls.crt": self.certificate(obj), "tls.key": b"key"}
        return Secret(metadata=metadata, type=SECRET_TYPE, data=data)

    def certificate(self, obj: LampControlPlane) -> bytes:
        return f"certificate of {obj.uid}".encode()

    def status(self, obj: LampControlPlane) -> ControlPlaneStatus:
        return ControlPlaneStatus(
            initialization=ControlPlaneInitialization(control_plane_initialized=True),
            external_managed_control_plane=True,
            versions=[VersionCount(version=obj.spec.version)],
        )


# Control planes that break one rule


class HidesEndpoint(LampControlPlanes):
    def publish_endpoint(self, ctx: ControlPlaneContext, config: Config) -> None:
        del ctx, config


class UnlabelledKubeconfig(LampControlPlanes):
    def kubeconfig(self, config: Config, cluster: str, obj: LampControlPlane) -> Secret:
        secret = super().kubeconfig(config, cluster, obj)
        secret.metadata.labels.clear()
        return secret


class WrongServer(LampControlPlanes):
    def kubeconfig(self, config: Config, cluster: str, obj: LampControlPlane) -> Secret:
        server = replace(config.server, address="https://127.0.0.1:1")
        return super().kubeconfig(replace(config, server=server), cluster, obj)


class HidesVersions(LampControlPlanes):
    def status(self, obj: LampControlPlane) -> ControlPlaneStatus:
        return super().status(obj).model_copy(update={"versions": []})


class ClaimsMachines(LampControlPlanes):
    def status(self, obj: LampControlPlane) -> ControlPlaneStatus:
        return super().status(obj).model_copy(update={"external_managed_control_plane": None})


class RenewsAuthority(LampControlPlanes):
    def certificate(self, obj: LampControlPlane) -> bytes:
        return super().certificate(obj) + (b" again" if obj.uid in self.lost else b"")


BROKEN_CONTROL_PLANES: dict[str, type[LampControlPlanes]] = {
    "endpoint": HidesEndpoint,
    "kubeconfig": UnlabelledKubeconfig,
    "kubeconfig-usable": WrongServer,
    "versions": HidesVersions,
    "external-control-plane": ClaimsMachines,
    "certificates-kept": RenewsAuthority,
}


def provider() -> Provider:
    reconcilers: list[type[Any]] = [
        LampClusters,
        LampMachines,
        LampControlPlanes,
        LampPools,
    ]
    return Provider.of(
        "lamp",
        "InfrastructureProvider",
        version="v0.1.0",
        module="lamps",
        reconcilers=reconcilers,
    )


if __name__ == "__main__":
    variant, *arguments = sys.argv[1:]
    sys.exit(main("lamps", lambda _: [globals()[variant]()], arguments=arguments))
