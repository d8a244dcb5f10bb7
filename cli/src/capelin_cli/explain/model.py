"""The answer of `capelin explain`, for people and for programs."""

from dataclasses import dataclass
from typing import Literal

from capelin.api import Model, Time

API_VERSION = "explain.capelin.cluster.x-k8s.io/v1alpha1"

Cause = Literal[
    "ClusterPaused",
    "Paused",
    "Asleep",
    "ControllerNotRunning",
    "ExtensionBlocksCore",
    "AwaitsApproval",
    "PolicyBlocks",
    "PolicyFailed",
    "ExtensionBlocks",
    "ExtensionFails",
    "ClassNotReconciled",
    "ClassFails",
    "TopologyFails",
    "KindNotServed",
    "ObjectMissing",
    "TemplateMissing",
    "SecretMissing",
    "WebhookFails",
    "Denied",
    "QuotaExceeded",
    "Forbidden",
    "PreflightCheck",
    "ApiUnreachable",
    "NodeMissing",
    "PodNetworkMissing",
    "KubeletStopped",
    "NodeNotHealthy",
    "RemediationStopped",
    "DisruptionBudget",
    "PodNotTerminating",
    "Drain",
    "DeletionHook",
    "Finalizer",
    "Reported",
    "Waits",
    "Unknown",
]

State = Literal["Ready", "Waiting", "Paused", "Asleep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An object, by kind and name."""

    group: str = ""
    kind: str
    name: str
    namespace: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def words(self) -> str:
        """The object in a command of kubectl."""
        kind = f"{self.kind.lower()}.{self.group}" if self.group else self.kind.lower()
        return f"{kind} {self.name}" + (f" -n {self.namespace}" if self.namespace else "")


class Link(Model):
    """One step of a chain: an object, and why the object before it waits."""

    object: Reference
    text: str
    since: Time | None = None
    evidence: str = ""
    """The field or event that shows it, such as `status.conditions[Ready]`."""


class Chain(Model):
    """From the Cluster to one cause. The last link has the object that causes the wait."""

    links: list[Link]
    cause: Cause
    """The rule that found the cause."""
    responsible: str
    """The person or the program that can end the wait."""
    command: str = ""
    """The next command to type."""

    @property
    def object(self) -> Reference:
        """The object that causes the wait."""
        return self.links[-1].object


class Explanation(Model):
    """Why a Cluster waits. Without chains, it does not."""

    api_version: str = API_VERSION
    kind: str = "Explanation"
    cluster: Reference
    state: State
    message: str = ""
    """The reason that other commands show while they wait."""
    chains: list[Chain] = []
