"""Clusters."""

from pydantic import Field

from capelin.api.meta import Condition
from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind
from capelin.api.views.capi.shared import (
    ContractReference,
    DeletionTimeouts,
    MachineTaint,
    Metadata,
    ReadinessGate,
    Replicas,
    Rollout,
    Variable,
)


class Endpoint(Model):
    """Where an API server is reached; empty until known."""

    host: str = ""
    port: int = 0


class NetworkRanges(Model):
    """Blocks of addresses."""

    cidr_blocks: list[str] = []


class ClusterNetwork(Model):
    """A workload cluster's own network."""

    api_server_port: int | None = None
    service_domain: str | None = None
    services: NetworkRanges = Field(default_factory=NetworkRanges)
    pods: NetworkRanges = Field(default_factory=NetworkRanges)


class ClassReference(Model):
    """The ClusterClass that a Cluster is made from."""

    name: str | None = None
    namespace: str | None = None


class VariableOverrides(Model):
    """Variables that differ for a part of the Cluster."""

    overrides: list[Variable] = []


class ControlPlaneTopology(Model):
    """The control plane that a managed topology asks for."""

    metadata: Metadata = Field(default_factory=Metadata)
    replicas: int | None = None
    rollout: Rollout | None = None
    deletion: DeletionTimeouts | None = None
    taints: list[MachineTaint] = []
    readiness_gates: list[ReadinessGate] = []
    variables: VariableOverrides | None = None


class WorkerTopology(Model):
    """A MachineDeployment or a MachinePool that a managed topology asks for."""

    metadata: Metadata = Field(default_factory=Metadata)
    class_: str | None = None
    name: str | None = None
    failure_domain: str | None = None
    failure_domains: list[str] = []
    replicas: int | None = None
    min_ready_seconds: int | None = None
    deletion: DeletionTimeouts | None = None
    taints: list[MachineTaint] = []
    rollout: Rollout | None = None
    variables: VariableOverrides | None = None


class WorkersTopology(Model):
    """The workers that a managed topology asks for."""

    machine_deployments: list[WorkerTopology] = []
    machine_pools: list[WorkerTopology] = []


class Topology(Model):
    """A Cluster as its ClusterClass is to shape it."""

    class_ref: ClassReference = Field(default_factory=ClassReference)
    version: str | None = None
    control_plane: ControlPlaneTopology = Field(default_factory=ControlPlaneTopology)
    workers: WorkersTopology = Field(default_factory=WorkersTopology)
    variables: list[Variable] = []


class ClusterSpec(Model):
    """What a Cluster is to be."""

    paused: bool | None = None
    cluster_network: ClusterNetwork = Field(default_factory=ClusterNetwork)
    control_plane_endpoint: Endpoint = Field(default_factory=Endpoint)
    control_plane_ref: ContractReference | None = None
    infrastructure_ref: ContractReference | None = None
    topology: Topology | None = None
    availability_gates: list[ReadinessGate] = []


class ClusterInitialization(Model):
    """What a Cluster has reached once; never taken back."""

    infrastructure_provisioned: bool | None = None
    control_plane_initialized: bool | None = None


class FailureDomain(Model):
    """A place that can fail on its own."""

    name: str
    control_plane: bool | None = None
    attributes: dict[str, str] = {}


class ClusterStatus(Model):
    """What a Cluster is."""

    conditions: list[Condition] = []
    initialization: ClusterInitialization = Field(default_factory=ClusterInitialization)
    control_plane: Replicas | None = None
    workers: Replicas | None = None
    failure_domains: list[FailureDomain] = []
    phase: str | None = None
    observed_generation: int | None = None


@kind(group="cluster.x-k8s.io", version="v1beta2")
class Cluster(BaseObject):
    """A workload cluster."""

    spec: ClusterSpec = Field(default_factory=ClusterSpec)
    status: ClusterStatus = Field(default_factory=ClusterStatus)
