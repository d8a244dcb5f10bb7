"""The kinds of the infrastructure provider."""

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

MOST_INSTANCES = 1_000

ProviderID = Annotated[str, MinLen(1), MaxLen(512)]
Share = Annotated[int, Ge(0), Le(100)]
"""A share of the machines, in percent."""
Seconds = Annotated[int, Ge(0), Le(86_400)]
Labels = Annotated[dict[str, LabelValue], MaxLen(64)]
Capacity = Annotated[dict[str, Quantity], MaxLen(32)]


class Endpoint(Model):
    """Where the API of the workload cluster answers."""

    host: Host | None = None
    port: Port | None = None

    rules = (
        rule("has(self.host) == has(self.port)", "host and port go together: say both or neither"),
        rule(
            "!has(self.host) || !self.host.contains('/')",
            "host is a name or an address alone, without https:// or a path",
        ),
    )


class FailureDomain(Model):
    """A place that can fail on its own."""

    name: Annotated[str, MinLen(1), MaxLen(256)]
    control_plane: bool = False
    """Whether control planes may be placed there."""
    attributes: Annotated[dict[str, Annotated[str, MaxLen(1024)]], MaxLen(32)] = {}


class ClusterMaking(Model):
    """How the infrastructure around machines is made."""

    failure_domains: Annotated[list[FailureDomain], MaxLen(100), map_list("name")] = []
    """Where machines can be placed, such that not all of them fail at once."""


class ClusterSpec(ClusterMaking):
    """What the infrastructure around machines is to be."""

    control_plane_endpoint: Endpoint | None = None
    """Where the API answers, if not the control plane provider but the user says it."""


class Initialization(Model):
    """What has happened once and stays so."""

    provisioned: bool | None = None


class ClusterStatus(Model):
    """What the infrastructure around machines is."""

    conditions: Conditions = []
    initialization: Initialization = Initialization()
    failure_domains: Annotated[list[FailureDomain], MaxLen(100), map_list("name")] = []
    ready: bool | None = None
    """As `initialization.provisioned`, for contract v1beta1."""
    observed_generation: Int64 | None = None


class Taint(Model):
    """What keeps pods off a node unless they tolerate it."""

    key: Annotated[str, MinLen(1), MaxLen(253)]
    value: Annotated[str, MaxLen(63)] = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Faults(Model):
    """What goes wrong with some of the machines, so that automation can be tried on it.

    Which machines are hit is decided by their names, so it is the same every time.
    """

    never_boots: Share = 0
    """The share of machines that never become nodes."""
    dies: Share = 0
    """The share of machines whose node falls silent some time after it became ready."""
    flaps: Share = 0
    """The share of machines whose node falls silent and comes back, again and again."""
    after_seconds: Seconds = 60
    """How long after its start a machine dies, or flaps for the first time."""

    rules = (
        rule(
            "self.neverBoots + self.dies + self.flaps <= 100",
            "the shares of faults are more than 100 percent together; a machine has one at most",
        ),
    )


class Simulated(Model):
    """Machines that exist only as nodes, kept alive by KWOK."""

    capacity: Capacity = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    """What a node has to offer."""
    labels: Labels = {}
    """Labels of the nodes."""
    taints: Annotated[list[Taint], MaxLen(32), map_list("key", "effect")] = []
    """Taints of the nodes."""
    startup_seconds: Seconds = 1
    """How long a machine takes to become a node."""
    startup_jitter_seconds: Seconds = 1
    """How much longer it takes at most; how much is decided by its name."""
    faults: Faults = Faults()


class MachineMaking(Model):
    """How a machine is made."""

    backend: Annotated[
        Literal["Simulated"], immutable("a machine cannot move from one backend to another")
    ] = "Simulated"
    """What a machine is made of."""
    simulated: Simulated = Simulated()
    """How simulated machines behave."""


class RollingUpdate(Model):
    """How machines are replaced when they are to be others."""

    max_surge: IntOrPercent = 1
    """How many machines more than wanted there may be meanwhile, as a number or a percentage."""
    max_unavailable: IntOrPercent = 0
    """How many machines less than wanted may be ready meanwhile."""
    delete_policy: Literal["Oldest", "Newest", "Random"] = "Oldest"
    """Which machine goes first when there are to be fewer, of those that are otherwise alike."""


class PoolMaking(MachineMaking):
    """How the machines of a pool are made."""

    rolling_update: RollingUpdate = RollingUpdate()


class PoolSpec(PoolMaking):
    """What a pool of machines is to be."""

    provider_id: ProviderID | None = None
    """What the pool is known by."""
    provider_id_list: Annotated[list[ProviderID], MaxLen(10_000), atomic()] = []
    """The machines in the pool. Written by the provider."""


class Address(Model):
    """An address of a machine."""

    type: Literal["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"]
    address: Annotated[str, MinLen(1), MaxLen(256)]


class Instance(Model):
    """A machine of a pool, for people."""

    instance_name: DNSSubdomain
    provider_id: ProviderID | None = None
    version: Annotated[str, MaxLen(256)] | None = None
    ready: bool = False


class PoolStatus(Model):
    """What a pool of machines is."""

    conditions: Conditions = []
    initialization: Initialization = Initialization()
    infrastructure_machine_kind: Annotated[str, MaxLen(63)] | None = None
    """The kind that stands for each machine of the pool."""
    instances: Annotated[list[Instance], MaxLen(MOST_INSTANCES), atomic()] = []
    """The machines of the pool, the first 1,000 by name: etcd takes no more than 1.5 MiB."""
    replicas: Replicas | None = None
    ready: bool | None = None
    """As `initialization.provisioned`, for contract v1beta1."""
    capacity: Capacity = {}
    """What one machine has to offer: the autoscaler reads it when there are none."""
    observed_generation: Int64 | None = None


class MachineSpec(MachineMaking):
    """What a machine is to be."""

    provider_id: Annotated[
        ProviderID | None, immutable("a machine keeps its provider ID: its Node is known by it")
    ] = None
    """What the machine is known by, and its node too. Written by the provider."""
    failure_domain: Annotated[str, MaxLen(256)] | None = None
    """Where the machine is, if its pool has placed it."""
    version: Annotated[str, MaxLen(256)] | None = None
    """The Kubernetes version of its node, if its pool says it; else its Machine's."""


class MachineStatus(Model):
    """What a machine is."""

    conditions: Conditions = []
    initialization: Initialization = Initialization()
    addresses: Annotated[list[Address], MaxLen(32), atomic()] = []
    failure_domain: Annotated[str, MaxLen(256)] | None = None
    ready: bool | None = None
    """As `initialization.provisioned`, for contract v1beta1."""
    observed_generation: Int64 | None = None


class MachineTemplateStatus(Model):
    """What the autoscaler reads when there are no machines yet."""

    capacity: Capacity = {}


_READY = '.status.conditions[?(@.type=="Ready")].status'
_CLUSTER = Column("Cluster", r".metadata.labels.cluster\.x-k8s\.io/cluster-name")
_AGE = Column("Age", ".metadata.creationTimestamp", "date")


def _definition(*columns: Column) -> Definition:
    return Definition(contracts=_CONTRACTS, columns=columns, categories=("cluster-api",))


@kind(group=GROUP, version=VERSION, definition=_definition(_CLUSTER, Column("Ready", _READY), _AGE))
class CapelinCluster(Object[ClusterSpec, ClusterStatus]):
    """The infrastructure around the machines of a cluster."""


@kind(group=GROUP, version=VERSION, definition=_definition(_AGE))
class CapelinClusterTemplate(Template[ClusterMaking]):
    """What the infrastructure around machines is made from, by a ClusterClass."""


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
class CapelinMachinePool(Object[PoolSpec, PoolStatus]):
    """Machines that are alike, as many as are asked for."""


@kind(group=GROUP, version=VERSION, definition=_definition(_AGE))
class CapelinMachinePoolTemplate(Template[PoolMaking]):
    """What pools are made from, by a ClusterClass."""


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
    """One machine."""


@kind(group=GROUP, version=VERSION, definition=_definition(_AGE))
class CapelinMachineTemplate(Template[MachineMaking]):
    """What machines are made from, by a MachineDeployment."""

    status: MachineTemplateStatus | None = None
