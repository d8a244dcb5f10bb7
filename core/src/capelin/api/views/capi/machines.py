"""Machines, and what makes many of them."""

from typing import Any

from pydantic import Field

from capelin.api.meta import Condition, Time
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
)
from capelin.api.views.core import LabelSelector, NodeAddress, NodeSystemInfo, ObjectReference


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
