"""API types of the infrastructure provider."""

from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from capelin.api import (
    Column,
    Conditions,
    Definition,
    Model,
    Object,
    Template,
    immutable,
    kind,
    rule,
)
from capelin.api.fields import (
    DNSSubdomain,
    Host,
    Int64,
    IntOrPercent,
    LabelValue,
    Port,
    Quantity,
    Replicas,
    atomic,
    map_list,
)

GROUP = "infrastructure.cluster.x-k8s.io"
VERSION = "v1alpha1"

_CONTRACTS = ("v1beta1", "v1beta2")

MAX_STATUS_INSTANCES = 1_000

ProviderID = Annotated[str, MinLen(1), MaxLen(512)]
Percentage = Annotated[int, Ge(0), Le(100)]
"""Percentage of the machines."""
Seconds = Annotated[int, Ge(0), Le(86_400)]
Labels = Annotated[dict[str, LabelValue], MaxLen(64)]
Capacity = Annotated[dict[str, Quantity], MaxLen(32)]


class Endpoint(Model):
    """Address of the workload cluster's API server."""

    host: Host | None = None
    port: Port | None = None

    rules = (
        rule("has(self.host) == has(self.port)", "host and port must be set together"),
        rule(
            "!has(self.host) || !self.host.contains('/')",
            "host must be a DNS name or an IP address, without https:// or a path",
        ),
    )


class FailureDomain(Model):
    """A part of the infrastructure that fails independently of the others."""

    name: Annotated[str, MinLen(1), MaxLen(256)]
    control_plane: bool = False
    """Whether control plane machines may be placed in this failure domain."""
    attributes: Annotated[dict[str, Annotated[str, MaxLen(1024)]], MaxLen(32)] = {}


class ClusterTemplateSpec(Model):
    """Settings shared by CapelinCluster and its template."""

    failure_domains: Annotated[list[FailureDomain], MaxLen(100), map_list("name")] = []
    """Failure domains over which machines are spread."""


class ClusterSpec(ClusterTemplateSpec):
    """Desired state of the cluster infrastructure."""

    control_plane_endpoint: Endpoint | None = None
    """Endpoint of the API server. Set it only if the control plane provider does not."""


class Initialization(Model):
    """Observed milestones of the first provisioning. They are never reset."""

    provisioned: bool | None = None
    """Whether the infrastructure has been provisioned."""


class ClusterStatus(Model):
    """Observed state of the cluster infrastructure."""

    conditions: Conditions = []
    initialization: Initialization = Initialization()
    failure_domains: Annotated[list[FailureDomain], MaxLen(100), map_list("name")] = []
    ready: bool | None = None
    """Same as `initialization.provisioned`, for contract v1beta1."""
    observed_generation: Int64 | None = None


class Taint(Model):
    """Taint of a Node."""

    key: Annotated[str, MinLen(1), MaxLen(253)]
    value: Annotated[str, MaxLen(63)] = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Faults(Model):
    """Faults that some of the simulated machines get, for testing automation.

    A machine's name decides whether it gets a fault, so the same machines always do.
    """

    never_boots: Percentage = 0
    """Percentage of machines that never get a Node."""
    dies: Percentage = 0
    """Percentage of machines whose Node stops sending heartbeats some time after it was ready."""
    flaps: Percentage = 0
    """Percentage of machines whose Node repeatedly stops and resumes sending heartbeats."""
    after_seconds: Seconds = 60
    """Seconds from a machine's start to its fault."""

    rules = (
        rule(
            "self.neverBoots + self.dies + self.flaps <= 100",
            "neverBoots, dies and flaps must not exceed 100 percent together",
        ),
    )


class Simulated(Model):
    """Settings of simulated machines: Node objects that KWOK keeps ready."""

    capacity: Capacity = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    """Capacity and allocatable resources of the Nodes."""
    labels: Labels = {}
    """Labels of the Nodes."""
    taints: Annotated[list[Taint], MaxLen(32), map_list("key", "effect")] = []
    """Taints of the Nodes."""
    startup_seconds: Seconds = 1
    """Seconds from the creation of a machine to its Node."""
    startup_jitter_seconds: Seconds = 1
    """Additional seconds, from none to this many. The machine's name decides how many."""
    faults: Faults = Faults()


class MachineTemplateSpec(Model):
    """Settings shared by CapelinMachine, CapelinMachinePool and their templates."""

    backend: Annotated[Literal["Simulated"], immutable("backend is immutable")] = "Simulated"
    """What provides the machines."""
    simulated: Simulated = Simulated()
    """Settings of the backend `Simulated`."""


class RollingUpdate(Model):
    """How a pool replaces outdated machines."""

    max_surge: IntOrPercent = 1
    """Number or percentage of machines above `replicas` during a rollout."""
    max_unavailable: IntOrPercent = 0
    """Number or percentage of machines that may be unavailable during a rollout."""
    delete_policy: Literal["Oldest", "Newest", "Random"] = "Oldest"
    """Which of otherwise equal machines is deleted first."""


class MachinePoolTemplateSpec(MachineTemplateSpec):
    """Settings shared by CapelinMachinePool and its template."""

    rolling_update: RollingUpdate = RollingUpdate()
    """How outdated machines are replaced."""


class MachinePoolSpec(MachinePoolTemplateSpec):
    """Desired state of a pool of machines."""

    provider_id: ProviderID | None = None
    """Provider ID of the pool. The provider does not use it."""
    provider_id_list: Annotated[list[ProviderID], MaxLen(10_000), atomic()] = []
    """Provider IDs of the machines in the pool. Set by the provider."""


class Address(Model):
    """An address of a machine."""

    type: Literal["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"]
    address: Annotated[str, MinLen(1), MaxLen(256)]


class PoolInstance(Model):
    """Observed state of one machine of a pool."""

    instance_name: DNSSubdomain
    provider_id: ProviderID | None = None
    version: Annotated[str, MaxLen(256)] | None = None
    ready: bool = False


class MachinePoolStatus(Model):
    """Observed state of a pool of machines."""

    conditions: Conditions = []
    initialization: Initialization = Initialization()
    infrastructure_machine_kind: Annotated[str, MaxLen(63)] | None = None
    """Kind of the infrastructure machines of the pool."""
    instances: Annotated[list[PoolInstance], MaxLen(MAX_STATUS_INSTANCES), atomic()] = []
    """Machines of the pool: the first 1,000 by name, as etcd limits the size of an object."""
    replicas: Replicas | None = None
    """Number of machines in `spec.providerIDList`."""
    ready: bool | None = None
    """Same as `initialization.provisioned`, for contract v1beta1."""
    capacity: Capacity = {}
    """Resources of one machine. The cluster autoscaler reads them when the pool is empty."""
    observed_generation: Int64 | None = None


class MachineSpec(MachineTemplateSpec):
    """Desired state of a machine."""

    provider_id: Annotated[
        ProviderID | None, immutable("providerID is immutable once it is set")
    ] = None
    """Provider ID of the machine and its Node. Set by the provider."""
    failure_domain: Annotated[str, MaxLen(256)] | None = None
    """Failure domain of the machine, if its pool has placed it."""
    version: Annotated[str, MaxLen(256)] | None = None
    """Kubernetes version of the Node. Set by the pool; otherwise the Machine's version is used."""


class MachineStatus(Model):
    """Observed state of a machine."""

    conditions: Conditions = []
    initialization: Initialization = Initialization()
    addresses: Annotated[list[Address], MaxLen(32), atomic()] = []
    failure_domain: Annotated[str, MaxLen(256)] | None = None
    ready: bool | None = None
    """Same as `initialization.provisioned`, for contract v1beta1."""
    observed_generation: Int64 | None = None


class MachineTemplateStatus(Model):
    """Observed state of a machine template, for the cluster autoscaler."""

    capacity: Capacity = {}
    """Resources of one machine made from this template."""


_READY = '.status.conditions[?(@.type=="Ready")].status'
_CLUSTER = Column("Cluster", r".metadata.labels.cluster\.x-k8s\.io/cluster-name")
_AGE = Column("Age", ".metadata.creationTimestamp", "date")


def _definition(*columns: Column) -> Definition:
    return Definition(contracts=_CONTRACTS, columns=columns, categories=("cluster-api",))


@kind(group=GROUP, version=VERSION, definition=_definition(_CLUSTER, Column("Ready", _READY), _AGE))
class CapelinCluster(Object[ClusterSpec, ClusterStatus]):
    """Infrastructure of a cluster."""


@kind(group=GROUP, version=VERSION, definition=_definition(_AGE))
class CapelinClusterTemplate(Template[ClusterTemplateSpec]):
    """Template of CapelinClusters, for a ClusterClass."""


@kind(
    group=GROUP,
    version=VERSION,
    definition=_definition(
        _CLUSTER,
        Column("Ready", _READY),
        Column("Replicas", ".status.replicas", "integer"),
        _AGE,
    ),
)
class CapelinMachinePool(Object[MachinePoolSpec, MachinePoolStatus]):
    """A pool of identical machines."""


@kind(group=GROUP, version=VERSION, definition=_definition(_AGE))
class CapelinMachinePoolTemplate(Template[MachinePoolTemplateSpec]):
    """Template of CapelinMachinePools, for a ClusterClass."""


@kind(
    group=GROUP,
    version=VERSION,
    definition=_definition(
        _CLUSTER,
        Column("Ready", _READY),
        Column("ProviderID", ".spec.providerID"),
        _AGE,
    ),
)
class CapelinMachine(Object[MachineSpec, MachineStatus]):
    """A machine."""


@kind(group=GROUP, version=VERSION, definition=_definition(_AGE))
class CapelinMachineTemplate(Template[MachineTemplateSpec]):
    """Template of CapelinMachines, for a MachineDeployment or a ClusterClass."""

    status: MachineTemplateStatus | None = None
