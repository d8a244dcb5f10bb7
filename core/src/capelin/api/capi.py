"""Cluster API's own kinds (v1beta2), with the fields that providers and extensions use.

Fields that are not listed here are ignored when reading, and never sent.
"""

from typing import Any

from pydantic import Field

from capelin.api.core import (
    Bytes,
    LabelSelector,
    NodeAddress,
    NodeSystemInfo,
    ObjectReference,
    Taint,
)
from capelin.api.meta import Condition, Time
from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind

# Shared types


class ContractReference(Model):
    """An object in the same namespace whose version follows from the contract."""

    api_group: str | None = None
    kind: str | None = None
    name: str | None = None


class TemplateReference(Model):
    """A template in the ClusterClass's namespace."""

    api_version: str | None = None
    kind: str | None = None
    name: str | None = None


class Metadata(Model):
    """Labels and annotations of objects to be made."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class StatusVersion(Model):
    """How many replicas run a version of Kubernetes."""

    version: str
    replicas: int | None = None


class UpgradeStep(Model):
    """A version on the way of an upgrade."""

    version: str


class Variable(Model):
    """A variable's name and value."""

    name: str
    value: Any = None


class MachineTaint(Taint):
    """A taint that Cluster API keeps on a Machine's Node."""

    propagation: str | None = None


class ReadinessGate(Model):
    """A further condition that `Ready` or `Available` depends on."""

    condition_type: str
    polarity: str | None = None


class DeletionTimeouts(Model):
    """How long each step of a Machine's removal may take; none or 0 is without limit."""

    order: str | None = None
    node_drain_timeout_seconds: int | None = None
    node_volume_detach_timeout_seconds: int | None = None
    node_deletion_timeout_seconds: int | None = None


class Replicas(Model):
    """How many Machines there are, in which state and version."""

    desired_replicas: int | None = None
    replicas: int | None = None
    up_to_date_replicas: int | None = None
    ready_replicas: int | None = None
    available_replicas: int | None = None
    versions: list[StatusVersion] = []
    upgrade_plan: list[UpgradeStep] = []


class Rollout(Model):
    """When to roll out, and how."""

    after: Time | None = None
    strategy: dict[str, Any] = {}


# Clusters


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


# Machines and their owners


class Bootstrap(Model):
    """Where a Machine's bootstrap data comes from."""

    config_ref: ContractReference | None = None
    data_secret_name: str | None = None


class MachineSpec(Model):
    """What a Machine is to be."""

    cluster_name: str | None = None
    bootstrap: Bootstrap = Field(default_factory=Bootstrap)
    infrastructure_ref: ContractReference | None = None
    version: str | None = None
    provider_id: str | None = None
    failure_domain: str | None = None
    min_ready_seconds: int | None = None
    readiness_gates: list[ReadinessGate] = []
    deletion: DeletionTimeouts | None = None
    taints: list[MachineTaint] = []


class MachineInitialization(Model):
    """What a Machine, or a MachinePool, has reached."""

    infrastructure_provisioned: bool | None = None
    bootstrap_data_secret_created: bool | None = None


class NodeReference(Model):
    """A Machine's Node."""

    name: str | None = None


class MachineDeletion(Model):
    """When each step of a Machine's removal began."""

    node_drain_start_time: Time | None = None
    wait_for_node_volume_detach_start_time: Time | None = None
    wait_for_pre_drain_hook_start_time: Time | None = None
    wait_for_pre_terminate_hook_start_time: Time | None = None


class MachineStatus(Model):
    """What a Machine is."""

    conditions: list[Condition] = []
    initialization: MachineInitialization = Field(default_factory=MachineInitialization)
    node_ref: NodeReference | None = None
    node_info: NodeSystemInfo | None = None
    addresses: list[NodeAddress] = []
    failure_domain: str | None = None
    phase: str | None = None
    certificates_expiry_date: Time | None = None
    deletion: MachineDeletion | None = None
    last_updated: Time | None = None
    observed_generation: int | None = None


@kind(group="cluster.x-k8s.io", version="v1beta2")
class Machine(BaseObject):
    """A machine and the Node on it."""

    spec: MachineSpec = Field(default_factory=MachineSpec)
    status: MachineStatus = Field(default_factory=MachineStatus)


class MachineTemplate(Model):
    """What Machines to be made look like."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: MachineSpec = Field(default_factory=MachineSpec)


class MachineDeploymentSpec(Model):
    """How many Machines of which shape, and how they change; also of a MachineSet."""

    cluster_name: str | None = None
    replicas: int | None = None
    selector: LabelSelector = Field(default_factory=LabelSelector)
    template: MachineTemplate = Field(default_factory=MachineTemplate)
    rollout: Rollout | None = None
    deletion: DeletionTimeouts | None = None
    paused: bool | None = None


class MachineDeploymentStatus(Replicas):
    """How many Machines there are; also of a MachineSet."""

    conditions: list[Condition] = []
    selector: str | None = None
    phase: str | None = None
    observed_generation: int | None = None


@kind(group="cluster.x-k8s.io", version="v1beta2")
class MachineDeployment(BaseObject):
    """Machines that are alike, replaced step by step when they are to change."""

    spec: MachineDeploymentSpec = Field(default_factory=MachineDeploymentSpec)
    status: MachineDeploymentStatus = Field(default_factory=MachineDeploymentStatus)


@kind(group="cluster.x-k8s.io", version="v1beta2")
class MachineSet(BaseObject):
    """Machines that are alike."""

    spec: MachineDeploymentSpec = Field(default_factory=MachineDeploymentSpec)
    status: MachineDeploymentStatus = Field(default_factory=MachineDeploymentStatus)


class MachinePoolSpec(Model):
    """How many instances of which shape."""

    cluster_name: str | None = None
    replicas: int | None = None
    template: MachineTemplate = Field(default_factory=MachineTemplate)
    provider_id_list: list[str] = []
    failure_domains: list[str] = []


class MachinePoolStatus(Replicas):
    """How many instances there are, and their Nodes."""

    conditions: list[Condition] = []
    initialization: MachineInitialization = Field(default_factory=MachineInitialization)
    node_refs: list[ObjectReference] = []
    phase: str | None = None
    observed_generation: int | None = None


@kind(group="cluster.x-k8s.io", version="v1beta2")
class MachinePool(BaseObject):
    """Machines that their infrastructure scales as one."""

    spec: MachinePoolSpec = Field(default_factory=MachinePoolSpec)
    status: MachinePoolStatus = Field(default_factory=MachinePoolStatus)


class UnhealthyCondition(Model):
    """A condition that makes a Machine unhealthy when it lasts."""

    type: str
    status: str
    timeout_seconds: int | None = None


class HealthChecks(Model):
    """What makes a Machine unhealthy."""

    node_startup_timeout_seconds: int | None = None
    unhealthy_node_conditions: list[UnhealthyCondition] = []
    unhealthy_machine_conditions: list[UnhealthyCondition] = []


class MachineHealthCheckSpec(Model):
    """Which Machines are watched for what."""

    cluster_name: str | None = None
    selector: LabelSelector = Field(default_factory=LabelSelector)
    checks: HealthChecks = Field(default_factory=HealthChecks)
    remediation: dict[str, Any] = {}


class MachineHealthCheckStatus(Model):
    """How the watched Machines fare."""

    conditions: list[Condition] = []
    expected_machines: int | None = None
    current_healthy: int | None = None
    remediations_allowed: int | None = None
    targets: list[str] = []
    observed_generation: int | None = None


@kind(group="cluster.x-k8s.io", version="v1beta2")
class MachineHealthCheck(BaseObject):
    """Has unhealthy Machines replaced."""

    spec: MachineHealthCheckSpec = Field(default_factory=MachineHealthCheckSpec)
    status: MachineHealthCheckStatus = Field(default_factory=MachineHealthCheckStatus)


# ClusterClasses


class ClassTemplate(Model):
    """A template that a class is made from."""

    template_ref: TemplateReference | None = None


class ControlPlaneClass(ClassTemplate):
    """The control planes of the class."""

    metadata: Metadata = Field(default_factory=Metadata)
    machine_infrastructure: ClassTemplate | None = None


class WorkerClass(Model):
    """MachineDeployments or MachinePools of the class."""

    class_: str | None = None
    metadata: Metadata = Field(default_factory=Metadata)
    bootstrap: ClassTemplate | None = None
    infrastructure: ClassTemplate | None = None


class WorkersClass(Model):
    """The workers of the class."""

    machine_deployments: list[WorkerClass] = []
    machine_pools: list[WorkerClass] = []


class VariableSchema(Model):
    """What values a variable takes, as a schema of OpenAPI v3."""

    openapi_schema: dict[str, Any] = Field(
        default={}, validation_alias="openAPIV3Schema", serialization_alias="openAPIV3Schema"
    )


class ClassVariable(Model):
    """A variable of the class."""

    name: str
    required: bool | None = None
    schema_: VariableSchema = Field(default_factory=VariableSchema)


class ExternalPatch(Model):
    """The hooks that patch and check what is made from the class."""

    generate_patches_extension: str | None = None
    validate_topology_extension: str | None = None
    discover_variables_extension: str | None = None
    settings: dict[str, str] = {}


class ClassPatch(Model):
    """A change of the templates for a Cluster."""

    name: str
    description: str | None = None
    enabled_if: str | None = None
    definitions: list[dict[str, Any]] = []
    external: ExternalPatch | None = None


class ExternalUpgrade(Model):
    """The hook that plans upgrades."""

    generate_upgrade_plan_extension: str | None = None


class ClassUpgrade(Model):
    """How Clusters of the class are upgraded."""

    external: ExternalUpgrade | None = None


class ClusterClassSpec(Model):
    """Templates, variables and patches."""

    infrastructure: ClassTemplate | None = None
    control_plane: ControlPlaneClass | None = None
    workers: WorkersClass = Field(default_factory=WorkersClass)
    variables: list[ClassVariable] = []
    patches: list[ClassPatch] = []
    upgrade: ClassUpgrade | None = None
    kubernetes_versions: list[str] = []


class VariableDefinition(Model):
    """Who defines a variable, and how."""

    from_: str | None = None
    required: bool | None = None
    schema_: VariableSchema = Field(default_factory=VariableSchema)


class StatusVariable(Model):
    """A variable with all its definitions."""

    name: str
    definitions_conflict: bool | None = None
    definitions: list[VariableDefinition] = []


class ClusterClassStatus(Model):
    """Which variables the class has, and whether all is well."""

    conditions: list[Condition] = []
    variables: list[StatusVariable] = []
    observed_generation: int | None = None


@kind(group="cluster.x-k8s.io", version="v1beta2")
class ClusterClass(BaseObject):
    """A shape that Clusters are made in."""

    spec: ClusterClassSpec = Field(default_factory=ClusterClassSpec)
    status: ClusterClassStatus = Field(default_factory=ClusterClassStatus)


# Runtime extensions


class ServiceReference(Model):
    """The service that leads to an extension."""

    namespace: str | None = None
    name: str | None = None
    path: str | None = None
    port: int | None = None


class ExtensionClientConfig(Model):
    """How an extension is reached: by URL or by service."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: Bytes | None = None


class ExtensionConfigSpec(Model):
    """Where an extension is, and for whom it is called."""

    client_config: ExtensionClientConfig = Field(default_factory=ExtensionClientConfig)
    namespace_selector: LabelSelector | None = None
    settings: dict[str, str] = {}


class GroupVersionHook(Model):
    """A hook in a version."""

    api_version: str
    hook: str


class ExtensionHandler(Model):
    """A hook that an extension answers."""

    name: str
    request_hook: GroupVersionHook
    timeout_seconds: int | None = None
    failure_policy: str | None = None


class ExtensionConfigStatus(Model):
    """What an extension has said that it answers."""

    conditions: list[Condition] = []
    handlers: list[ExtensionHandler] = []


@kind(group="runtime.cluster.x-k8s.io", version="v1beta2", namespaced=False)
class ExtensionConfig(BaseObject):
    """A runtime extension."""

    spec: ExtensionConfigSpec = Field(default_factory=ExtensionConfigSpec)
    status: ExtensionConfigStatus = Field(default_factory=ExtensionConfigStatus)


# The kubeadm providers


class BootstrapInitialization(Model):
    """Whether the bootstrap data is there."""

    data_secret_created: bool | None = None


class KubeadmConfigStatus(Model):
    """Where the bootstrap data is."""

    conditions: list[Condition] = []
    initialization: BootstrapInitialization = Field(default_factory=BootstrapInitialization)
    data_secret_name: str | None = None
    observed_generation: int | None = None


@kind(group="bootstrap.cluster.x-k8s.io", version="v1beta2")
class KubeadmConfig(BaseObject):
    """How a machine joins by kubeadm."""

    spec: dict[str, Any] = {}
    status: KubeadmConfigStatus = Field(default_factory=KubeadmConfigStatus)


class KubeadmControlPlaneTemplateSpec(Model):
    """Machines of the control plane to be made."""

    metadata: Metadata = Field(default_factory=Metadata)
    spec: dict[str, Any] = {}


class KubeadmControlPlaneSpec(Model):
    """How many machines of which version."""

    replicas: int | None = None
    version: str | None = None
    machine_template: KubeadmControlPlaneTemplateSpec = Field(
        default_factory=KubeadmControlPlaneTemplateSpec
    )
    kubeadm_config_spec: dict[str, Any] = {}


class ControlPlaneInitialization(Model):
    """Whether the API server has answered once."""

    control_plane_initialized: bool | None = None


class KubeadmControlPlaneStatus(Replicas):
    """How the control plane fares."""

    conditions: list[Condition] = []
    initialization: ControlPlaneInitialization = Field(default_factory=ControlPlaneInitialization)
    selector: str | None = None
    version: str | None = None
    observed_generation: int | None = None


@kind(group="controlplane.cluster.x-k8s.io", version="v1beta2")
class KubeadmControlPlane(BaseObject):
    """A control plane on Machines, made by kubeadm."""

    spec: KubeadmControlPlaneSpec = Field(default_factory=KubeadmControlPlaneSpec)
    status: KubeadmControlPlaneStatus = Field(default_factory=KubeadmControlPlaneStatus)


__all__ = [
    "Bootstrap",
    "BootstrapInitialization",
    "ClassPatch",
    "ClassReference",
    "ClassTemplate",
    "ClassUpgrade",
    "ClassVariable",
    "Cluster",
    "ClusterClass",
    "ClusterClassSpec",
    "ClusterClassStatus",
    "ClusterInitialization",
    "ClusterNetwork",
    "ClusterSpec",
    "ClusterStatus",
    "ContractReference",
    "ControlPlaneClass",
    "ControlPlaneInitialization",
    "ControlPlaneTopology",
    "DeletionTimeouts",
    "Endpoint",
    "ExtensionClientConfig",
    "ExtensionConfig",
    "ExtensionConfigSpec",
    "ExtensionConfigStatus",
    "ExtensionHandler",
    "ExternalPatch",
    "ExternalUpgrade",
    "FailureDomain",
    "GroupVersionHook",
    "HealthChecks",
    "KubeadmConfig",
    "KubeadmConfigStatus",
    "KubeadmControlPlane",
    "KubeadmControlPlaneSpec",
    "KubeadmControlPlaneStatus",
    "KubeadmControlPlaneTemplateSpec",
    "Machine",
    "MachineDeletion",
    "MachineDeployment",
    "MachineDeploymentSpec",
    "MachineDeploymentStatus",
    "MachineHealthCheck",
    "MachineHealthCheckSpec",
    "MachineHealthCheckStatus",
    "MachineInitialization",
    "MachinePool",
    "MachinePoolSpec",
    "MachinePoolStatus",
    "MachineSet",
    "MachineSpec",
    "MachineStatus",
    "MachineTaint",
    "MachineTemplate",
    "Metadata",
    "NetworkRanges",
    "NodeReference",
    "ReadinessGate",
    "Replicas",
    "Rollout",
    "ServiceReference",
    "StatusVariable",
    "StatusVersion",
    "TemplateReference",
    "Topology",
    "UnhealthyCondition",
    "UpgradeStep",
    "Variable",
    "VariableDefinition",
    "VariableOverrides",
    "VariableSchema",
    "WorkerClass",
    "WorkerTopology",
    "WorkersClass",
    "WorkersTopology",
]
