"""What an action is: started, observed and cleaned up from objects alone, never from memory."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from capelin.api.capi import Cluster
from capelin.client import Client, WorkloadClients

from capelin_lifecycle.actions.counting import CountedCluster
from capelin_lifecycle.actions.reservations import Reservations
from capelin_lifecycle.api import CreatedObject, LifecycleResult, Phase, Quota
from capelin_lifecycle.policies.selection import KnownPolicy

MANAGER: Final = "capelin-lifecycle"
"""Field manager of all that the extension writes."""

POLICY_LABEL: Final = "runtime.capelin.cluster.x-k8s.io/policy"
"""On results and on what an action created: a hash of the policy's kind, namespace and name."""

QUICK_SECONDS: Final = 5
"""When to ask again about what a person or another Cluster may change any moment."""
SLOW_SECONDS: Final = 15
"""When to ask again about work that takes minutes."""


@dataclass(frozen=True, slots=True)
class Run:
    """An action for one occurrence of a hook."""

    client: Client
    workloads: WorkloadClients
    namespace: str
    """The extension's own, where the Secrets of cluster-wide policies are."""
    policy: KnownPolicy
    result: LifecycleResult
    cluster: Cluster
    cluster_json: dict[str, Any]
    """The Cluster as it was read."""
    namespace_labels: Mapping[str, Mapping[str, str]]
    """Labels of the namespaces, by their names."""
    counted: Callable[[Quota], Awaitable[Sequence[CountedCluster]]] | None
    """The Clusters that a quota of the policy counts, by the copies of a replica that has any."""
    is_gone: Callable[[str], bool]
    """Whether a Cluster with this uid was there, and is no more."""
    reservations: Reservations
    """Of the quotas of all policies."""
    now: datetime

    @property
    def secrets_namespace(self) -> str:
        """Where what the policy names is: beside it."""
        return self.policy.namespace or self.namespace

    @property
    def created(self) -> Sequence[CreatedObject]:
        """What earlier runs of the action have created."""
        return self.result.created

    @property
    def labels(self) -> dict[str, str]:
        """For all that the action creates."""
        return {POLICY_LABEL: self.policy.key.label, "app.kubernetes.io/managed-by": MANAGER}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far an action is."""

    phase: Phase
    message: str = ""
    retry_seconds: int = SLOW_SECONDS
    created: Sequence[CreatedObject] | None = None
    """All that it has created; what it had before, if unset."""
    only_by_cluster: bool = False
    """Whether it goes on only when its Cluster changes, and not by itself."""


def waiting(
    message: str, seconds: int = QUICK_SECONDS, *, only_by_cluster: bool = False
) -> Outcome:
    """The action waits for something that is not its own work."""
    return Outcome("Waiting", message, seconds, only_by_cluster=only_by_cluster)


def done(message: str = "") -> Outcome:
    """The action is over, and well."""
    return Outcome("Done", message)


def failed(message: str) -> Outcome:
    """The action is over, and not well."""
    return Outcome("Failed", message)


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What is left to do for a result that goes."""

    client: Client
    workloads: WorkloadClients
    result: LifecycleResult
    cluster: Cluster


class ActionRunner(Protocol):
    """An action; the same calls come again after a restart, and from another replica."""

    keeps_up: bool
    """Whether it runs again when a policy whose result is done changes. What it created then stays
    for as long as the policy, and not for as long as the result."""

    def problems(self, policy: KnownPolicy) -> list[str]:
        """What is wrong with the policy's action that its CRD cannot say."""
        ...

    async def reconcile(self, run: Run) -> Outcome:
        """Start the work if it has not started, and say how far it is."""
        ...

    async def cleanup(self, run: Cleanup) -> None:
        """Remove what is not to be left behind."""
        ...


class Lasting:
    """The base of actions that leave nothing behind, or leave it on purpose."""

    keeps_up = False

    async def cleanup(self, run: Cleanup) -> None:
        """Nothing to remove."""
        del run
