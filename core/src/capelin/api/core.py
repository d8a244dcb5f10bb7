"""Kubernetes' own kinds, with the fields that Capelin reads and writes.

Fields that are not listed here are ignored when reading, and never sent.
"""

from base64 import b64decode, b64encode
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer

from capelin.api.meta import MicroTime, Time
from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind

# Shared types


def _decoded(value: object) -> object:
    return b64decode(value, validate=True) if isinstance(value, str) else value


def _encoded(value: bytes) -> str:
    return b64encode(value).decode()


NULL_IS_EMPTY = BeforeValidator(lambda value: [] if value is None else value)
"""For lists that Go writes as `null` if they are empty."""

Bytes = Annotated[bytes, BeforeValidator(_decoded), PlainSerializer(_encoded)]
"""Bytes in Python, base64 on the wire."""


class ObjectReference(Model):
    api_version: str | None = None
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    field_path: str | None = None


class LabelSelector(Model):
    """Selects objects by their labels."""

    class Requirement(Model):
        key: str
        operator: str
        values: list[str] = []

    match_labels: dict[str, str] = {}
    match_expressions: list[Requirement] = []


class StateCondition(Model):
    """A condition of a core kind. Older than `Condition`, with fewer required fields."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_transition_time: Time | None = None
    last_heartbeat_time: Time | None = None


# Namespaces, Secrets, ConfigMaps, ServiceAccounts


@kind(group="", version="v1", name="Secret")
class Secret(BaseObject):
    """Secret data. Neither `repr` nor a validation error shows it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(hide_input_in_errors=True)

    type: str | None = None
    data: dict[str, Bytes] = Field(default={}, repr=False)
    immutable: bool | None = None


@kind(group="", version="v1")
class ConfigMap(BaseObject):
    """Configuration data."""

    data: dict[str, str] = {}
    binary_data: dict[str, Bytes] = {}
    immutable: bool | None = None


@kind(group="", version="v1")
class ServiceAccount(BaseObject):
    """The identity of a process towards the API server."""

    automount_service_account_token: bool | None = None


class NamespaceSpec(Model):
    finalizers: list[str] = []


class NamespaceStatus(Model):
    phase: str | None = None
    conditions: list[StateCondition] = []


@kind(group="", version="v1", namespaced=False)
class Namespace(BaseObject):
    """A scope for names."""

    spec: NamespaceSpec = Field(default_factory=NamespaceSpec)
    status: NamespaceStatus = Field(default_factory=NamespaceStatus)


# Leases and Events


class LeaseSpec(Model):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: MicroTime | None = None
    renew_time: MicroTime | None = None
    lease_transitions: int | None = None


@kind(group="coordination.k8s.io", version="v1")
class Lease(BaseObject):
    """A lock with an expiry, held by one process at a time."""

    spec: LeaseSpec = Field(default_factory=LeaseSpec)


class EventSeries(Model):
    """How often an event happened again."""

    count: int
    last_observed_time: MicroTime


@kind(group="events.k8s.io", version="v1")
class Event(BaseObject):
    """Something that happened to an object (events.k8s.io/v1)."""

    event_time: MicroTime | None = None
    series: EventSeries | None = None
    reporting_controller: str | None = None
    reporting_instance: str | None = None
    action: str | None = None
    reason: str | None = None
    regarding: ObjectReference | None = None
    related: ObjectReference | None = None
    note: str | None = None
    type: str | None = None
    deprecated_count: int | None = None
    deprecated_first_timestamp: Time | None = None
    deprecated_last_timestamp: Time | None = None


class EventSource(Model):
    component: str | None = None
    host: str | None = None


@kind(group="", version="v1", name="Event")
class CoreEvent(BaseObject):
    """Something that happened to an object (v1)."""

    involved_object: ObjectReference | None = None
    related: ObjectReference | None = None
    reason: str | None = None
    message: str | None = None
    type: str | None = None
    action: str | None = None
    count: int | None = None
    event_time: MicroTime | None = None
    first_timestamp: Time | None = None
    last_timestamp: Time | None = None
    series: EventSeries | None = None
    source: EventSource | None = None
    reporting_component: str | None = None
    reporting_instance: str | None = None


# Nodes


class Taint(Model):
    """A taint that keeps pods away from a node."""

    key: str
    value: str | None = None
    effect: str
    time_added: Time | None = None


class NodeSpec(Model):
    provider_id: str | None = None
    pod_cidr: str | None = None
    pod_cidrs: list[str] = []
    taints: list[Taint] = []
    unschedulable: bool | None = None


class NodeAddress(Model):
    """A name or an IP address at which a node, or a machine, can be reached."""

    type: str
    address: str


class NodeSystemInfo(Model):
    """The kubelet's report about its machine."""

    architecture: str | None = None
    operating_system: str | None = None
    os_image: str | None = None
    kernel_version: str | None = None
    kubelet_version: str | None = None
    container_runtime_version: str | None = None
    kube_proxy_version: str | None = None
    machine_id: str | None = None
    system_uuid: str | None = None
    boot_id: str | None = None


class NodeStatus(Model):
    addresses: list[NodeAddress] = []
    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}
    conditions: list[StateCondition] = []
    node_info: NodeSystemInfo = Field(default_factory=NodeSystemInfo)
    phase: str | None = None


@kind(group="", version="v1", namespaced=False)
class Node(BaseObject):
    """A machine that runs pods."""

    spec: NodeSpec = Field(default_factory=NodeSpec)
    status: NodeStatus = Field(default_factory=NodeStatus)


# Pods, Services and workloads


class Container(Model):
    """A container of a pod."""

    name: str
    image: str | None = None
    command: list[str] = []
    args: list[str] = []


class Toleration(Model):
    """A taint that a pod tolerates."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class PodSpec(Model):
    containers: list[Container] = []
    init_containers: list[Container] = []
    node_name: str | None = None
    node_selector: dict[str, str] = {}
    priority_class_name: str | None = None
    service_account_name: str | None = None
    termination_grace_period_seconds: int | None = None
    tolerations: list[Toleration] = []


class ContainerStatus(Model):
    name: str
    image: str | None = None
    ready: bool | None = None
    started: bool | None = None
    restart_count: int | None = None
    state: dict[str, dict[str, Any]] = {}
    last_state: dict[str, dict[str, Any]] = {}


class PodStatus(Model):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    conditions: list[StateCondition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    host_ip: str | None = None
    pod_ip: str | None = None


@kind(group="", version="v1")
class Pod(BaseObject):
    """Containers that run together on one node."""

    spec: PodSpec = Field(default_factory=PodSpec)
    status: PodStatus = Field(default_factory=PodStatus)


class PodTemplateMeta(Model):
    """Labels and annotations of new pods."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodTemplate(Model):
    metadata: PodTemplateMeta = Field(default_factory=PodTemplateMeta)
    spec: PodSpec = Field(default_factory=PodSpec)


class WorkloadSpec(Model):
    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplate = Field(default_factory=PodTemplate)


class WorkloadStatus(Model):
    observed_generation: int | None = None
    replicas: int | None = None
    updated_replicas: int | None = None
    ready_replicas: int | None = None
    available_replicas: int | None = None
    unavailable_replicas: int | None = None
    conditions: list[StateCondition] = []


@kind(group="apps", version="v1")
class Deployment(BaseObject):
    """Interchangeable pods."""

    spec: WorkloadSpec = Field(default_factory=WorkloadSpec)
    status: WorkloadStatus = Field(default_factory=WorkloadStatus)


@kind(group="apps", version="v1")
class StatefulSet(BaseObject):
    """Pods with a stable name and storage."""

    spec: WorkloadSpec = Field(default_factory=WorkloadSpec)
    status: WorkloadStatus = Field(default_factory=WorkloadStatus)


class ServicePort(Model):
    name: str | None = None
    protocol: str | None = None
    port: int
    target_port: int | str | None = None
    node_port: int | None = None


class ServiceSpec(Model):
    type: str | None = None
    cluster_ip: str | None = None
    cluster_ips: list[str] = []
    external_name: str | None = None
    load_balancer_ip: str | None = None
    ports: list[ServicePort] = []
    selector: dict[str, str] = {}


class LoadBalancerIngress(Model):
    ip: str | None = None
    hostname: str | None = None


class LoadBalancerStatus(Model):
    ingress: list[LoadBalancerIngress] = []


class ServiceStatus(Model):
    load_balancer: LoadBalancerStatus = Field(default_factory=LoadBalancerStatus)
    conditions: list[StateCondition] = []


@kind(group="", version="v1")
class Service(BaseObject):
    """A stable address for a set of pods."""

    spec: ServiceSpec = Field(default_factory=ServiceSpec)
    status: ServiceStatus = Field(default_factory=ServiceStatus)


# RBAC


class PolicyRule(Model):
    """Verbs on resources, or on URLs."""

    verbs: list[str]
    api_groups: list[str] = []
    resources: list[str] = []
    resource_names: list[str] = []
    non_resource_urls: list[str] = []


class Subject(Model):
    """A user, group or service account that has a role."""

    kind: str
    name: str
    namespace: str | None = None
    api_group: str | None = None


class RoleRef(Model):
    api_group: str
    kind: str
    name: str


class AggregationRule(Model):
    """Selects cluster roles whose rules are aggregated."""

    cluster_role_selectors: list[LabelSelector] = []


@kind(group="rbac.authorization.k8s.io", version="v1")
class Role(BaseObject):
    """Permissions in a namespace."""

    rules_: Annotated[list[PolicyRule], NULL_IS_EMPTY] = []


@kind(group="rbac.authorization.k8s.io", version="v1", namespaced=False)
class ClusterRole(BaseObject):
    """Permissions in the whole cluster."""

    rules_: Annotated[list[PolicyRule], NULL_IS_EMPTY] = []
    aggregation_rule: AggregationRule | None = None


@kind(group="rbac.authorization.k8s.io", version="v1")
class RoleBinding(BaseObject):
    """Grants a role in a namespace."""

    subjects: list[Subject] = []
    role_ref: RoleRef | None = None


@kind(group="rbac.authorization.k8s.io", version="v1", namespaced=False)
class ClusterRoleBinding(BaseObject):
    """Grants a role in the whole cluster."""

    subjects: list[Subject] = []
    role_ref: RoleRef | None = None


# CustomResourceDefinitions and API services


class Names(Model):
    kind: str | None = None
    list_kind: str | None = None
    plural: str | None = None
    singular: str | None = None
    short_names: list[str] = []
    categories: list[str] = []


class DefinedVersion(Model):
    name: str
    served: bool | None = None
    storage: bool | None = None
    deprecated: bool | None = None
    subresources: dict[str, Any] = {}


class CustomResourceDefinitionSpec(Model):
    group: str | None = None
    scope: str | None = None
    names: Names = Field(default_factory=Names)
    versions: list[DefinedVersion] = []
    conversion: dict[str, Any] = {}


class CustomResourceDefinitionStatus(Model):
    conditions: Annotated[list[StateCondition], NULL_IS_EMPTY] = []
    accepted_names: Names = Field(default_factory=Names)
    stored_versions: Annotated[list[str], NULL_IS_EMPTY] = []


@kind(group="apiextensions.k8s.io", version="v1", namespaced=False)
class CustomResourceDefinition(BaseObject):
    spec: CustomResourceDefinitionSpec = Field(default_factory=CustomResourceDefinitionSpec)
    status: CustomResourceDefinitionStatus = Field(default_factory=CustomResourceDefinitionStatus)
