"""API types of the infrastructure provider."""

from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from capelin.api import (
    Column,
    DNSSubdomain,
    IntOrPercent,
    LabelValue,
    Model,
    Object,
    Quantity,
    Template,
    atomic,
    immutable,
    kind,
    map_list,
    rule,
)
from capelin.provider import (
    INFRA_CLUSTER,
    INFRA_MACHINE,
    TEMPLATE,
    FailureDomains,
    InfraClusterSpec,
    InfraClusterStatus,
    InfraMachinePoolSpec,
    InfraMachinePoolStatus,
    InfraMachineSpec,
    InfraMachineStatus,
    MachineAddress,
    ProviderID,
    definition,
)

GROUP = "infrastructure.cluster.x-k8s.io"
VERSION = "v1alpha1"

MAX_STATUS_INSTANCES = 1_000

Percentage = Annotated[int, Ge(0), Le(100)]
"""Percentage of the machines."""
Seconds = Annotated[int, Ge(0), Le(86_400)]
Labels = Annotated[dict[str, LabelValue], MaxLen(64)]
Capacity = Annotated[dict[str, Quantity], MaxLen(32)]
Commands = Annotated[list[Annotated[str, MinLen(1), MaxLen(4096)]], MaxLen(20), atomic()]
BackendName = Literal["Simulated", "Containers", "Hosts"]
UpdateMethod = Literal["Replace", "InPlace"]
Profile = Literal["Image", "Bundle", "Commands"]


class ClusterTemplateSpec(Model):
    """Settings shared by CapelinCluster and its template."""

    failure_domains: FailureDomains = []
    """Failure domains over which machines are spread."""


class ClusterSpec(ClusterTemplateSpec, InfraClusterSpec):
    """Desired state of the cluster infrastructure."""


class Taint(Model):
    """Taint of a Node."""

    key: Annotated[str, MinLen(1), MaxLen(253)]
    """Key of the taint."""
    value: Annotated[str, MaxLen(63)] = ""
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    """Effect on pods that do not tolerate it."""


class Faults(Model):
    """Faults that some of the machines get, for testing automation.

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
    """Capacity and allocatable resources of the Nodes: `4` of `cpu`, `16Gi` of `memory`."""
    labels: Labels = {}
    """Labels of the Nodes."""
    taints: Annotated[list[Taint], MaxLen(32), map_list("key", "effect")] = []
    """Taints of the Nodes."""
    startup_seconds: Seconds = 1
    """Seconds from the creation of a machine to its Node."""
    startup_jitter_seconds: Seconds = 1
    """Additional seconds, from none to this many. The machine's name decides how many."""
    faults: Faults = Faults()
    """Faults that some of the machines get."""


class Containers(Model):
    """Settings of machines that are containers on the provider's machine."""

    image: Annotated[str, MinLen(1), MaxLen(512)] | None = None
    """Image of a machine with systemd, a kubelet and a container runtime, such as `kindest/node`.
    The provider runs only the images of its option `--container-images`. Default: the first one of
    them whose tag is the version of the machine, or else the first one."""
    cpu: Quantity | None = None
    """Most CPU time that a container gets: `2` or `1500m`. Default: no limit."""
    memory: Quantity | None = None
    """Most memory that a container gets: `4Gi`. Default: no limit."""
    faults: Faults = Faults()
    """Faults that some of the containers get. One that dies or flaps is paused."""


class Hosts(Model):
    """Settings of machines that are CapelinHosts."""

    match_labels: Labels = {}
    """Labels that a host must have. Without any, every free host of the namespace is suitable."""
    clean_commands: Commands = []
    """Shell commands that the clean-up of a host runs as root. If one fails, the host is not used
    again until you confirm that it is clean."""
    profile: Profile = "Image"
    """How a host gets its container runtime, kubelet and kubeadm. `Image`: its image has them.
    `Bundle`: the provider copies the archive for the version from its folder `--host-bundles`, and
    a clean-up restores the former files. `Commands`: `installCommands` install them."""
    install_commands: Commands = []
    """Shell commands of the profile `Commands`. They run as root before the bootstrap and in each
    update in place, with the version in `$KUBERNETES_VERSION`. If one fails, the others do not
    run. A clean-up does not undo them."""

    rules = (
        rule(
            "(has(self.profile) && self.profile == 'Commands') =="
            " (has(self.installCommands) && size(self.installCommands) > 0)",
            "the profile Commands needs installCommands, and other profiles do not use them",
            field_path=".installCommands",
        ),
    )


class HostReference(Model):
    """The host that a machine has claimed."""

    name: DNSSubdomain
    """Name of the CapelinHost."""
    claim: Annotated[str, MinLen(1), MaxLen(64)]
    """Identifier of the claim, which `clusterctl move` does not change."""


class MachineTemplateSpec(Model):
    """Settings shared by CapelinMachine, CapelinMachinePool and their templates."""

    backend: Annotated[BackendName, immutable("backend is immutable")] = "Simulated"
    """The backend that provides the machines: simulated ones, containers of the provider's machine,
    or CapelinHosts."""
    simulated: Simulated = Simulated()
    """Settings of the backend `Simulated`."""
    containers: Containers | None = None
    """Settings of the backend `Containers`."""
    hosts: Hosts | None = None
    """Settings of the backend `Hosts`."""


class RollingUpdate(Model):
    """How a pool replaces or updates outdated machines."""

    method: UpdateMethod = "Replace"
    """Whether a new version of Kubernetes replaces machines, or updates them in place. `InPlace`
    needs the backend `Hosts` with a profile other than `Image`. It drains a Node, installs the
    version, runs `kubeadm upgrade node` and restarts the kubelet. Other changes, and versions that
    kubeadm cannot reach in one step, still replace machines."""
    max_surge: IntOrPercent = 1
    """Number or percentage of machines above `replicas` while machines are replaced."""
    max_unavailable: IntOrPercent = 0
    """Number or percentage of machines that may be unavailable during a rollout."""
    delete_policy: Literal["Oldest", "Newest", "Random"] = "Oldest"
    """Which of otherwise equal machines is deleted first."""

    rules = (
        rule(
            # The API server evaluates the rule on the default before it fills it.
            "!has(self.maxSurge) || !has(self.maxUnavailable)"
            " || !string(self.maxSurge).matches('^0+%?$')"
            " || !string(self.maxUnavailable).matches('^0+%?$')",
            "maxSurge and maxUnavailable are both zero: no machine could ever be replaced",
            field_path=".maxUnavailable",
        ),
        rule(
            "!has(self.method) || self.method != 'InPlace' || (has(self.maxUnavailable)"
            " && !string(self.maxUnavailable).matches('^0+%?$'))",
            "set maxUnavailable: a machine is unavailable during its update in place",
            field_path=".maxUnavailable",
        ),
    )


class MachinePoolTemplateSpec(MachineTemplateSpec):
    """Settings shared by CapelinMachinePool and its template."""

    rolling_update: RollingUpdate = RollingUpdate()
    """How outdated machines are replaced or updated."""

    rules = (
        rule(
            "!has(self.rollingUpdate) || !has(self.rollingUpdate.method)"
            " || self.rollingUpdate.method != 'InPlace' || (has(self.backend)"
            " && self.backend == 'Hosts' && has(self.hosts) && has(self.hosts.profile)"
            " && self.hosts.profile != 'Image')",
            "InPlace needs the backend Hosts and hosts.profile Bundle or Commands",
            field_path=".rollingUpdate.method",
        ),
    )


class MachinePoolSpec(MachinePoolTemplateSpec, InfraMachinePoolSpec):
    """Desired state of a pool of machines."""


class NodeInfo(Model):
    """Platform of the Nodes that machines become."""

    architecture: Annotated[str, MaxLen(63)] = ""
    """CPU architecture, such as `amd64`."""
    operating_system: Annotated[str, MaxLen(63)] = ""
    """Operating system, such as `linux`."""


class PoolInstance(Model):
    """Observed state of one machine of a pool."""

    instance_name: DNSSubdomain
    """Name of its CapelinMachine."""
    provider_id: ProviderID | None = None
    """The provider ID of its Node."""
    version: Annotated[str, MaxLen(256)] | None = None
    """Kubernetes version of its Node."""
    addresses: Annotated[list[MachineAddress], MaxLen(32), atomic()] = []
    """Addresses of the machine."""
    ready: bool = False
    """Whether it runs."""


class MachinePoolStatus(InfraMachinePoolStatus):
    """Observed state of a pool of machines."""

    instances: Annotated[list[PoolInstance], MaxLen(MAX_STATUS_INSTANCES), atomic()] = []
    """Machines of the pool: the first 1,000 by name, as etcd limits the size of an object."""
    capacity: Capacity = {}
    """Resources of one machine, such as `16Gi` of `memory`.

    The cluster autoscaler reads them when the pool is empty.
    """
    node_info: NodeInfo | None = None
    """Platform of the pool's Nodes. The cluster autoscaler reads it when the pool is empty."""


class MachineSpec(MachineTemplateSpec, InfraMachineSpec):
    """Desired state of a machine."""

    version: Annotated[str, MaxLen(256)] | None = None
    """Kubernetes version of the Node. A pool sets it. Otherwise the Machine's version applies."""
    host: HostReference | None = None
    """The host that the machine has claimed. Written by the provider."""


class MachineTemplateStatus(Model):
    """Observed state of a machine template, for the cluster autoscaler."""

    capacity: Capacity = {}
    """Resources of one machine made from this template, such as `16Gi` of `memory`."""
    node_info: NodeInfo | None = None
    """Platform of a Node created from this template."""


@kind(group=GROUP, version=VERSION, definition=replace(INFRA_CLUSTER, short_names=("capelincl",)))
class CapelinCluster(Object[ClusterSpec, InfraClusterStatus]):
    """Infrastructure of a cluster."""


@kind(group=GROUP, version=VERSION, definition=TEMPLATE)
class CapelinClusterTemplate(Template[ClusterTemplateSpec]):
    """Template of CapelinClusters, for a ClusterClass."""


@kind(
    group=GROUP,
    version=VERSION,
    definition=definition(
        *(column for column in INFRA_CLUSTER.columns if column.name != "Age"),
        Column("Replicas", ".status.replicas", "integer"),
        short_names=("capelinmp",),
    ),
)
class CapelinMachinePool(Object[MachinePoolSpec, MachinePoolStatus]):
    """A pool of identical machines."""


@kind(group=GROUP, version=VERSION, definition=TEMPLATE)
class CapelinMachinePoolTemplate(Template[MachinePoolTemplateSpec]):
    """Template of CapelinMachinePools, for a ClusterClass."""


@kind(group=GROUP, version=VERSION, definition=replace(INFRA_MACHINE, short_names=("capelinma",)))
class CapelinMachine(Object[MachineSpec, InfraMachineStatus]):
    """A machine."""


@kind(group=GROUP, version=VERSION, definition=TEMPLATE)
class CapelinMachineTemplate(Template[MachineTemplateSpec]):
    """Template of CapelinMachines, for a MachineDeployment or a ClusterClass."""

    status: MachineTemplateStatus | None = None
