"""What several of Cluster API's kinds are made of."""

from typing import Any

from capelin.api.meta import Time
from capelin.api.model import Model
from capelin.api.views.core import Taint


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
