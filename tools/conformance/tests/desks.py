"""A tiny provider that keeps every rule, and its manifests."""

from typing import Any

from capelin.api import Definition, Model, Object, Replicas, Scale, Unstructured, kind
from capelin.controller import Done, Result
from capelin.provider import (
    INFRA_CLUSTER,
    INFRA_MACHINE,
    ControlPlaneContext,
    ControlPlaneReconciler,
    ControlPlaneStatus,
    Endpoint,
    InfraClusterContext,
    InfraClusterReconciler,
    InfraClusterSpec,
    InfraClusterStatus,
    InfraMachineContext,
    InfraMachineReconciler,
    InfraMachineSpec,
    InfraMachineStatus,
    Provider,
)
from capelin_conformance.providers import ProviderManifests

INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io"
FOREIGN = "desks.example.com"
LABEL = "cluster.x-k8s.io/provider"


@kind(group=INFRASTRUCTURE, version="v1alpha1", definition=INFRA_CLUSTER)
class DeskCluster(Object[InfraClusterSpec, InfraClusterStatus]):
    """A room of desks."""


@kind(group=INFRASTRUCTURE, version="v1alpha1", definition=INFRA_MACHINE)
class DeskMachine(Object[InfraMachineSpec, InfraMachineStatus]):
    """A desk."""


@kind(group=FOREIGN, version="v1alpha1", definition=INFRA_MACHINE)
class StandingMachine(Object[InfraMachineSpec, InfraMachineStatus]):
    """A desk in an API group of the provider's own."""


class DeskControlPlaneSpec(Model):
    """Desired state."""

    replicas: Replicas = 1
    """Number of replicas."""
    control_plane_endpoint: Endpoint | None = None
    """Address of the API server."""


@kind(
    group="controlplane.cluster.x-k8s.io",
    version="v1alpha1",
    definition=Definition(contracts=("v1beta2",), scale=Scale(selector=".status.selector")),
)
class DeskControlPlane(Object[DeskControlPlaneSpec, ControlPlaneStatus]):
    """The first desk of a room."""


class DeskClusters(InfraClusterReconciler[DeskCluster]):
    async def reconcile_normal(self, ctx: InfraClusterContext, _obj: DeskCluster) -> Result:
        ctx.set_provisioned()
        return Done()


class DeskMachines(InfraMachineReconciler[DeskMachine]):
    async def reconcile_normal(self, ctx: InfraMachineContext, obj: DeskMachine) -> Result:
        ctx.set_provisioned(f"desk:///{obj.namespace}/{obj.name}")
        return Done()


class StandingMachines(InfraMachineReconciler[StandingMachine]):
    async def reconcile_normal(self, ctx: InfraMachineContext, obj: StandingMachine) -> Result:
        ctx.set_provisioned(f"desk:///{obj.namespace}/{obj.name}")
        return Done()


class DeskControlPlanes(ControlPlaneReconciler[DeskControlPlane]):
    async def reconcile_normal(self, _ctx: ControlPlaneContext, _obj: DeskControlPlane) -> Result:
        return Done()


def _provider(*reconcilers: type[Any]) -> Provider:
    return Provider.of(
        "desk",
        "InfrastructureProvider",
        version="v0.1.0",
        module="desks",
        reconcilers=reconcilers,
    )


def components() -> list[Unstructured]:
    """The components of a release, with a Deployment, all of them labelled."""
    label = "infrastructure-desk"
    provider = _provider(DeskClusters, DeskMachines, StandingMachines, DeskControlPlanes)
    container = {"name": "manager", "image": "registry.example.com/desk:v0.1.0"}
    deployment: Unstructured = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "desk", "namespace": provider.namespace},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    return [_labelled(obj, label) for obj in (*provider.components(), deployment)]


def release() -> ProviderManifests:
    """The manifests of a release."""
    series = [{"major": 0, "minor": 1, "contract": "v1beta2"}]
    return ProviderManifests(
        components(),
        {
            "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3",
            "kind": "Metadata",
            "releaseSeries": series,
        },
        {"infrastructure-components.yaml": "replicas: ${DESK_REPLICAS:=1}\nprice: 1$$\n"},
    )


def _labelled(obj: Unstructured, label: str) -> Unstructured:
    metadata = obj["metadata"]
    labels: Unstructured = {**(metadata.get("labels") or {}), LABEL: label}
    return {**obj, "metadata": {**metadata, "labels": labels}}
