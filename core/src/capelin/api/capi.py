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
    """Labels and annotations of new objects."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class StatusVersion(Model):
    """How many replicas run a version of Kubernetes."""

    version: str
    replicas: int | None = None


class UpgradeStep(Model):
    version: str


class Variable(Model):
    name: str
    value: Any = None


class MachineTaint(Taint):
    """A taint that Cluster API keeps on a Machine's Node."""

    propagation: str | None = None


class ReadinessGate(Model):
    """An additional condition that `Ready` or `Available` depends on."""

    condition_type: str
    polarity: str | None = None


class DeletionTimeouts(Model):
    """Timeouts for each step of a Machine's deletion. 0 or unset means no limit."""

    order: str | None = None
    node_drain_timeout_seconds: int | None = None
    node_volume_detach_timeout_seconds: int | None = None
    node_deletion_timeout_seconds: int | None = None


class Replicas(Model):
    """Numbers of Machines by state and version."""

    desired_replicas: int | None = None
    replicas: int | None = None
    up_to_date_replicas: int | None = None
    ready_replicas: int | None = None
    available_replicas: int | None = None
    versions: list[StatusVersion] = []
    upgrade_plan: list[UpgradeStep] = []


class Rollout(Model):
    """When and how to roll out."""

    after: Time | None = None
    strategy: dict[str, Any] = {}


# Clusters


class Endpoint(Model):
    """The endpoint of an API server. Empty until it is known."""

    host: str = ""
    port: int = 0


class NetworkRanges(Model):
    cidr_blocks: list[str] = []


class ClusterNetwork(Model):
    api_server_port: int | None = None
    service_domain: str | None = None
    services: NetworkRanges = Field(default_factory=NetworkRanges)
    pods: NetworkRanges = Field(default_factory=NetworkRanges)


class ClassReference(Model):
    name: str | None = None
    namespace: str | None = None


class VariableOverrides(Model):
    """Values of variables for a part of the Cluster."""

    overrides: list[Variable] = []


class ControlPlaneTopology(Model):
    metadata: Metadata = Field(default_factory=Metadata)
    replicas: int | None = None
    rollout: Rollout | None = None
    deletion: DeletionTimeouts | None = None
    taints: list[MachineTaint] = []
    readiness_gates: list[ReadinessGate] = []
    variables: VariableOverrides | None = None


class WorkerTopology(Model):
    """A MachineDeployment or MachinePool of a managed topology."""

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
    machine_deployments: list[WorkerTopology] = []
    machine_pools: list[WorkerTopology] = []


class Topology(Model):
    class_ref: ClassReference = Field(default_factory=ClassReference)
    version: str | None = None
    control_plane: ControlPlaneTopology = Field(default_factory=ControlPlaneTopology)
    workers: WorkersTopology = Field(default_factory=WorkersTopology)
    variables: list[Variable] = []


class ClusterSpec(Model):
    paused: bool | None = None
    cluster_network: ClusterNetwork = Field(default_factory=ClusterNetwork)
    control_plane_endpoint: Endpoint = Field(default_factory=Endpoint)
    control_plane_ref: ContractReference | None = None
    infrastructure_ref: ContractReference | None = None
    topology: Topology | None = None
    availability_gates: list[ReadinessGate] = []


class ClusterInitialization(Model):
    """Milestones of a Cluster's creation. Core never reverts them."""

    infrastructure_provisioned: bool | None = None
    control_plane_initialized: bool | None = None


class FailureDomain(Model):
    name: str
    control_plane: bool | None = None
    attributes: dict[str, str] = {}


class ClusterStatus(Model):
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
    """Source of a Machine's bootstrap data."""

    config_ref: ContractReference | None = None
    data_secret_name: str | None = None


class MachineSpec(Model):
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
    """Milestones of a Machine's or MachinePool's creation."""

    infrastructure_provisioned: bool | None = None
    bootstrap_data_secret_created: bool | None = None


class NodeReference(Model):
    name: str | None = None


class MachineDeletion(Model):
    """When each step of a Machine's deletion started."""

    node_drain_start_time: Time | None = None
    wait_for_node_volume_detach_start_time: Time | None = None
    wait_for_pre_drain_hook_start_time: Time | None = None
    wait_for_pre_terminate_hook_start_time: Time | None = None


class MachineStatus(Model):
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
    metadata: Metadata = Field(default_factory=Metadata)
    spec: MachineSpec = Field(default_factory=MachineSpec)


class MachineDeploymentSpec(Model):
    cluster_name: str | None = None
    replicas: int | None = None
    selector: LabelSelector = Field(default_factory=LabelSelector)
    template: MachineTemplate = Field(default_factory=MachineTemplate)
    rollout: Rollout | None = None
    deletion: DeletionTimeouts | None = None
    paused: bool | None = None


class MachineDeploymentStatus(Replicas):
    conditions: list[Condition] = []
    selector: str | None = None
    phase: str | None = None
    observed_generation: int | None = None


@kind(group="cluster.x-k8s.io", version="v1beta2")
class MachineDeployment(BaseObject):
    """Machines from one template, with rolling updates."""

    spec: MachineDeploymentSpec = Field(default_factory=MachineDeploymentSpec)
    status: MachineDeploymentStatus = Field(default_factory=MachineDeploymentStatus)


@kind(group="cluster.x-k8s.io", version="v1beta2")
class MachineSet(BaseObject):
    """A set of Machines from one template."""

    spec: MachineDeploymentSpec = Field(default_factory=MachineDeploymentSpec)
    status: MachineDeploymentStatus = Field(default_factory=MachineDeploymentStatus)


class MachinePoolSpec(Model):
    cluster_name: str | None = None
    replicas: int | None = None
    template: MachineTemplate = Field(default_factory=MachineTemplate)
    provider_id_list: list[str] = []
    failure_domains: list[str] = []


class MachinePoolStatus(Replicas):
    conditions: list[Condition] = []
    initialization: MachineInitialization = Field(default_factory=MachineInitialization)
    node_refs: list[ObjectReference] = []
    phase: str | None = None
    observed_generation: int | None = None


@kind(group="cluster.x-k8s.io", version="v1beta2")
class MachinePool(BaseObject):
    """Machines that the infrastructure scales as a group."""

    spec: MachinePoolSpec = Field(default_factory=MachinePoolSpec)
    status: MachinePoolStatus = Field(default_factory=MachinePoolStatus)


class UnhealthyCondition(Model):
    """A condition that makes a Machine unhealthy after a timeout."""

    type: str
    status: str
    timeout_seconds: int | None = None


class HealthChecks(Model):
    """Conditions and timeouts that make a Machine unhealthy."""

    node_startup_timeout_seconds: int | None = None
    unhealthy_node_conditions: list[UnhealthyCondition] = []
    unhealthy_machine_conditions: list[UnhealthyCondition] = []


class MachineHealthCheckSpec(Model):
    cluster_name: str | None = None
    selector: LabelSelector = Field(default_factory=LabelSelector)
    checks: HealthChecks = Field(default_factory=HealthChecks)
    remediation: dict[str, Any] = {}


class MachineHealthCheckStatus(Model):
    conditions: list[Condition] = []
    expected_machines: int | None = None
    current_healthy: int | None = None
    remediations_allowed: int | None = None
    targets: list[str] = []
    observed_generation: int | None = None


@kind(group="cluster.x-k8s.io", version="v1beta2")
class MachineHealthCheck(BaseObject):
    """Replaces unhealthy Machines."""

    spec: MachineHealthCheckSpec = Field(default_factory=MachineHealthCheckSpec)
    status: MachineHealthCheckStatus = Field(default_factory=MachineHealthCheckStatus)


# ClusterClasses


class ClassTemplate(Model):
    template_ref: TemplateReference | None = None


class ControlPlaneClass(ClassTemplate):
    metadata: Metadata = Field(default_factory=Metadata)
    machine_infrastructure: ClassTemplate | None = None


class WorkerClass(Model):
    """MachineDeployments or MachinePools of the class."""

    class_: str | None = None
    metadata: Metadata = Field(default_factory=Metadata)
    bootstrap: ClassTemplate | None = None
    infrastructure: ClassTemplate | None = None


class WorkersClass(Model):
    machine_deployments: list[WorkerClass] = []
    machine_pools: list[WorkerClass] = []


class VariableSchema(Model):
    """The OpenAPI v3 schema of a variable."""

    openapi_schema: dict[str, Any] = Field(
        default={}, validation_alias="openAPIV3Schema", serialization_alias="openAPIV3Schema"
    )


class ClassVariable(Model):
    name: str
    required: bool | None = None
    schema_: VariableSchema = Field(default_factory=VariableSchema)


class ExternalPatch(Model):
    generate_patches_extension: str | None = None
    validate_topology_extension: str | None = None
    discover_variables_extension: str | None = None
    settings: dict[str, str] = {}


class ClassPatch(Model):
    name: str
    description: str | None = None
    enabled_if: str | None = None
    definitions: list[dict[str, Any]] = []
    external: ExternalPatch | None = None


class ExternalUpgrade(Model):
    """The hook that makes upgrade plans."""

    generate_upgrade_plan_extension: str | None = None


class ClassUpgrade(Model):
    """How Clusters of the class are upgraded."""

    external: ExternalUpgrade | None = None


class ClusterClassSpec(Model):
    infrastructure: ClassTemplate | None = None
    control_plane: ControlPlaneClass | None = None
    workers: WorkersClass = Field(default_factory=WorkersClass)
    variables: list[ClassVariable] = []
    patches: list[ClassPatch] = []
    upgrade: ClassUpgrade | None = None
    kubernetes_versions: list[str] = []


class VariableDefinition(Model):
    from_: str | None = None
    required: bool | None = None
    schema_: VariableSchema = Field(default_factory=VariableSchema)


class StatusVariable(Model):
    name: str
    definitions_conflict: bool | None = None
    definitions: list[VariableDefinition] = []


class ClusterClassStatus(Model):
    conditions: list[Condition] = []
    variables: list[StatusVariable] = []
    observed_generation: int | None = None


@kind(group="cluster.x-k8s.io", version="v1beta2")
class ClusterClass(BaseObject):
    """A blueprint for Clusters."""

    spec: ClusterClassSpec = Field(default_factory=ClusterClassSpec)
    status: ClusterClassStatus = Field(default_factory=ClusterClassStatus)


# Runtime extensions


class ServiceReference(Model):
    namespace: str | None = None
    name: str | None = None
    path: str | None = None
    port: int | None = None


class ExtensionClientConfig(Model):
    """How to reach an extension: by URL or Service."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: Bytes | None = None


class ExtensionConfigSpec(Model):
    client_config: ExtensionClientConfig = Field(default_factory=ExtensionClientConfig)
    namespace_selector: LabelSelector | None = None
    settings: dict[str, str] = {}


class GroupVersionHook(Model):
    api_version: str
    hook: str


class ExtensionHandler(Model):
    name: str
    request_hook: GroupVersionHook
    timeout_seconds: int | None = None
    failure_policy: str | None = None


class ExtensionConfigStatus(Model):
    conditions: list[Condition] = []
    handlers: list[ExtensionHandler] = []


@kind(group="runtime.cluster.x-k8s.io", version="v1beta2", namespaced=False)
class ExtensionConfig(BaseObject):
    """A runtime extension."""

    spec: ExtensionConfigSpec = Field(default_factory=ExtensionConfigSpec)
    status: ExtensionConfigStatus = Field(default_factory=ExtensionConfigStatus)


# The kubeadm providers


class BootstrapInitialization(Model):
    """Whether the bootstrap data exists."""

    data_secret_created: bool | None = None


class KubeadmConfigStatus(Model):
    conditions: list[Condition] = []
    initialization: BootstrapInitialization = Field(default_factory=BootstrapInitialization)
    data_secret_name: str | None = None
    observed_generation: int | None = None


@kind(group="bootstrap.cluster.x-k8s.io", version="v1beta2")
class KubeadmConfig(BaseObject):
    """Bootstrap configuration for kubeadm."""

    spec: dict[str, Any] = {}
    status: KubeadmConfigStatus = Field(default_factory=KubeadmConfigStatus)


class KubeadmControlPlaneTemplateSpec(Model):
    metadata: Metadata = Field(default_factory=Metadata)
    spec: dict[str, Any] = {}


class KubeadmControlPlaneSpec(Model):
    replicas: int | None = None
    version: str | None = None
    machine_template: KubeadmControlPlaneTemplateSpec = Field(
        default_factory=KubeadmControlPlaneTemplateSpec
    )
    kubeadm_config_spec: dict[str, Any] = {}


class ControlPlaneInitialization(Model):
    control_plane_initialized: bool | None = None


class KubeadmControlPlaneStatus(Replicas):
    conditions: list[Condition] = []
    initialization: ControlPlaneInitialization = Field(default_factory=ControlPlaneInitialization)
    selector: str | None = None
    version: str | None = None
    observed_generation: int | None = None


@kind(group="controlplane.cluster.x-k8s.io", version="v1beta2")
class KubeadmControlPlane(BaseObject):
    """A control plane on Machines, created by kubeadm."""

    spec: KubeadmControlPlaneSpec = Field(default_factory=KubeadmControlPlaneSpec)
    status: KubeadmControlPlaneStatus = Field(default_factory=KubeadmControlPlaneStatus)
