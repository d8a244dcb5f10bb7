"""What runs on nodes, and the addresses that lead to it."""

from typing import Any

from pydantic import Field

from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind
from capelin.api.views.core.shared import LabelSelector, StateCondition


class Container(Model):
    """A process of a pod, as far as one looks at it from outside."""

    name: str
    image: str | None = None
    command: list[str] = []
    args: list[str] = []


class Toleration(Model):
    """A taint that a pod puts up with."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class PodSpec(Model):
    """Where a pod runs and what runs in it."""

    containers: list[Container] = []
    init_containers: list[Container] = []
    node_name: str | None = None
    node_selector: dict[str, str] = {}
    priority_class_name: str | None = None
    service_account_name: str | None = None
    termination_grace_period_seconds: int | None = None
    tolerations: list[Toleration] = []


class ContainerStatus(Model):
    """How a process of a pod fares."""

    name: str
    ready: bool | None = None
    restart_count: int | None = None
    state: dict[str, dict[str, Any]] = {}


class PodStatus(Model):
    """How a pod fares."""

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
    """Processes that run together."""

    spec: PodSpec = Field(default_factory=PodSpec)
    status: PodStatus = Field(default_factory=PodStatus)


class PodTemplateMeta(Model):
    """Labels and annotations of pods to be made."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodTemplate(Model):
    """What pods to be made look like."""

    metadata: PodTemplateMeta = Field(default_factory=PodTemplateMeta)
    spec: PodSpec = Field(default_factory=PodSpec)


class WorkloadSpec(Model):
    """How many pods of which shape."""

    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplate = Field(default_factory=PodTemplate)


class WorkloadStatus(Model):
    """How many pods there are, and how many serve."""

    observed_generation: int | None = None
    replicas: int | None = None
    updated_replicas: int | None = None
    ready_replicas: int | None = None
    available_replicas: int | None = None
    unavailable_replicas: int | None = None
    conditions: list[StateCondition] = []


@kind(group="apps", version="v1")
class Deployment(BaseObject):
    """Pods that are alike."""

    spec: WorkloadSpec = Field(default_factory=WorkloadSpec)
    status: WorkloadStatus = Field(default_factory=WorkloadStatus)


@kind(group="apps", version="v1")
class StatefulSet(BaseObject):
    """Pods that keep a name and a disk."""

    spec: WorkloadSpec = Field(default_factory=WorkloadSpec)
    status: WorkloadStatus = Field(default_factory=WorkloadStatus)


class ServicePort(Model):
    """A port that a service listens on."""

    name: str | None = None
    protocol: str | None = None
    port: int
    target_port: int | str | None = None
    node_port: int | None = None


class ServiceSpec(Model):
    """What a service listens on and whom it leads to."""

    type: str | None = None
    cluster_ip: str | None = None
    cluster_ips: list[str] = []
    external_name: str | None = None
    load_balancer_ip: str | None = None
    ports: list[ServicePort] = []
    selector: dict[str, str] = {}


class LoadBalancerIngress(Model):
    """An address of a load balancer."""

    ip: str | None = None
    hostname: str | None = None


class LoadBalancerStatus(Model):
    """Where a load balancer can be reached."""

    ingress: list[LoadBalancerIngress] = []


class ServiceStatus(Model):
    """Where a service can be reached from outside."""

    load_balancer: LoadBalancerStatus = Field(default_factory=LoadBalancerStatus)
    conditions: list[StateCondition] = []


@kind(group="", version="v1")
class Service(BaseObject):
    """A steady address for pods that come and go."""

    spec: ServiceSpec = Field(default_factory=ServiceSpec)
    status: ServiceStatus = Field(default_factory=ServiceStatus)
