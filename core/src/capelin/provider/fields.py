"""Specs and statuses that Cluster API's contracts prescribe, for the kinds of providers.

A kind's own spec and status inherit from these and add what the provider needs.
"""

from types import new_class
from typing import Annotated, Any, Literal

from annotated_types import MaxLen, MinLen

from capelin.api import (
    Column,
    Conditions,
    Definition,
    Host,
    Int64,
    KubernetesVersion,
    Model,
    Object,
    Port,
    Replicas,
    Template,
    atomic,
    immutable,
    kind,
    map_list,
    rule,
)

ProviderID = Annotated[str, MinLen(1), MaxLen(512)]
"""Identifier of a machine. Its Node has the same `spec.providerID`."""

CONTRACTS = ("v1beta2",)
"""The contract versions that these fields fulfil."""

_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_CLUSTER = Column("Cluster", r".metadata.labels.cluster\.x-k8s\.io/cluster-name")
_READY = Column("Ready", '.status.conditions[?(@.type=="Ready")].status')
_PROVIDER_ID = Column("ProviderID", ".spec.providerID")


def definition(
    *columns: Column,
    contracts: tuple[str, ...] = CONTRACTS,
    short_names: tuple[str, ...] = (),
) -> Definition:
    """The definition of a provider's kind: its contract, its category, its columns, its age."""
    return Definition(
        contracts=contracts,
        columns=(*columns, _AGE),
        short_names=short_names,
        categories=("cluster-api",),
    )


INFRA_CLUSTER = definition(_CLUSTER, _READY)
INFRA_MACHINE = definition(_CLUSTER, _READY, _PROVIDER_ID)
TEMPLATE = definition()


class Endpoint(Model):
    """Address of the workload cluster's API server."""

    host: Host | None = None
    """DNS name or IP address, without a scheme."""
    port: Port | None = None
    """TCP port."""

    rules = (
        rule("has(self.host) == has(self.port)", "host and port go together: set both or neither"),
        rule(
            "!has(self.host) || !self.host.contains('/')",
            "host must be a name or an address, without https:// or a path",
        ),
    )


class FailureDomain(Model):
    """A part of the infrastructure that can fail on its own."""

    name: Annotated[str, MinLen(1), MaxLen(256)]
    """Name of the failure domain."""
    control_plane: bool = False
    """Whether control plane machines may be placed there."""
    attributes: Annotated[dict[str, Annotated[str, MaxLen(1024)]], MaxLen(32)] = {}
    """Additional attributes of the failure domain."""


FailureDomains = Annotated[list[FailureDomain], MaxLen(100), map_list("name")]


class Initialization(Model):
    """Milestones that are reached once and stay reached."""

    provisioned: bool | None = None
    """Whether the infrastructure was fully provisioned."""


class MachineAddress(Model):
    """An address of a machine."""

    type: Literal["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"]
    """Type of the address."""
    address: Annotated[str, MinLen(1), MaxLen(256)]
    """The address."""


class InfraStatus(Model):
    """Fields of the statuses of all infrastructure kinds."""

    conditions: Conditions = []
    """Observations of the object's state. `Ready` sums them up."""
    initialization: Initialization = Initialization()
    """Milestones that are reached once and stay reached."""
    ready: bool | None = None
    """Same as `initialization.provisioned`, for readers of contract v1beta1."""
    observed_generation: Int64 | None = None
    """Generation of the spec that this status describes."""


class InfraClusterSpec(Model):
    """Desired state of the infrastructure of a Cluster."""

    control_plane_endpoint: Endpoint | None = None
    """Address of the API server, if the infrastructure provides it and not the control plane."""


class InfraClusterStatus(InfraStatus):
    """Observed state of the infrastructure of a Cluster."""

    failure_domains: FailureDomains = []
    """Failure domains that machines can be placed in."""


class InfraMachineSpec(Model):
    """Desired state of the infrastructure of a Machine."""

    provider_id: Annotated[
        ProviderID | None, immutable("a machine keeps its provider ID, which identifies its Node")
    ] = None
    """Identifier of the machine, and of its Node. Written by the provider."""
    failure_domain: Annotated[str, MaxLen(256)] | None = None
    """Failure domain that the machine is placed in."""


class InfraMachineStatus(InfraStatus):
    """Observed state of the infrastructure of a Machine."""

    addresses: Annotated[list[MachineAddress], MaxLen(32), atomic()] = []
    """Addresses of the machine."""
    failure_domain: Annotated[str, MaxLen(256)] | None = None
    """Failure domain that the machine is in."""


class InfraMachinePoolSpec(Model):
    """Desired state of the infrastructure of a MachinePool."""

    provider_id: ProviderID | None = None
    """Identifier of the pool."""
    provider_id_list: Annotated[list[ProviderID], MaxLen(10_000), atomic()] = []
    """Identifiers of the pool's machines. Written by the provider."""


class InfraMachinePoolStatus(InfraStatus):
    """Observed state of the infrastructure of a MachinePool."""

    replicas: Replicas | None = None
    """Number of machines in the pool."""
    infrastructure_machine_kind: Annotated[str, MaxLen(63)] | None = None
    """Kind of the objects that represent the pool's machines, if any."""


class ControlPlaneInitialization(Model):
    """Milestones that are reached once and stay reached."""

    control_plane_initialized: bool | None = None
    """Whether the API server has answered."""


class VersionCount(Model):
    """Number of replicas that run a version."""

    version: KubernetesVersion
    """Kubernetes version."""
    replicas: Replicas | None = None
    """Number of replicas that run it."""


class ControlPlaneStatus(Model):
    """Observed state of a control plane."""

    conditions: Conditions = []
    """Observations of the control plane's state. `Available` sums them up."""
    initialization: ControlPlaneInitialization = ControlPlaneInitialization()
    """Milestones that are reached once and stay reached."""
    observed_generation: Int64 | None = None
    """Generation of the spec that this status describes."""
    external_managed_control_plane: bool | None = None
    """Whether the control plane has no machines among the Nodes of its cluster."""
    selector: Annotated[str, MaxLen(2048)] | None = None
    """Label selector of the replicas, for the scale subresource."""
    replicas: Replicas | None = None
    """Number of replicas."""
    ready_replicas: Replicas | None = None
    """Number of replicas that are ready."""
    available_replicas: Replicas | None = None
    """Number of replicas that have been ready for long enough."""
    up_to_date_replicas: Replicas | None = None
    """Number of replicas that match the spec."""
    versions: Annotated[list[VersionCount], MaxLen(100), map_list("version")] = []
    """Versions that replicas run now, the oldest first."""
    version: KubernetesVersion | None = None
    """The oldest of these versions."""


def template_of(made: type[Object[Any, Any]]) -> type[Template[Any]]:
    """The kind `FooTemplate`, from which ClusterClasses and MachineDeployments create a `Foo`."""
    resource = made.resource
    name = f"{resource.kind}Template"
    spec = made.model_fields["spec"].annotation
    doc = f"Template of {resource.kind} objects."
    twin: type[Template[Any]] = new_class(
        name,
        (Template[spec],),  # pyright: ignore[reportInvalidTypeArguments] - known at run time
        exec_body=lambda body: body.update(__module__=made.__module__, __doc__=doc),
    )
    return kind(group=resource.group, version=resource.version, definition=TEMPLATE)(twin)
