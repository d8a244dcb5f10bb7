"""Nodes."""

from pydantic import Field

from capelin.api.meta import Time
from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind
from capelin.api.views.core.shared import StateCondition


class Taint(Model):
    """What keeps pods away from a node."""

    key: str
    value: str | None = None
    effect: str
    time_added: Time | None = None


class NodeSpec(Model):
    """What was said about a node."""

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
    """What the kubelet says about the machine it runs on."""

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
    """What the kubelet reports."""

    addresses: list[NodeAddress] = []
    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}
    conditions: list[StateCondition] = []
    node_info: NodeSystemInfo = Field(default_factory=NodeSystemInfo)
    phase: str | None = None


@kind(group="", version="v1", namespaced=False)
class Node(BaseObject):
    """A machine of the workload cluster."""

    spec: NodeSpec = Field(default_factory=NodeSpec)
    status: NodeStatus = Field(default_factory=NodeStatus)
