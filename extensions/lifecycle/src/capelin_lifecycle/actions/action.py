"""The protocol of actions that work. They keep all state in objects, and none in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from capelin.api.capi import Cluster
from capelin.client import Client, WorkloadClients

from capelin_lifecycle.api.results import CreatedObject, LifecycleResult
from capelin_lifecycle.policies.clusters import PolicyKey
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.verdict import Verdict

MANAGER: Final = "capelin-lifecycle"
"""Field manager of everything that the extension writes."""

POLICY_LABEL: Final = "runtime.capelin.cluster.x-k8s.io/policy"
"""On results and on objects that an action created: a hash of the policy's identity."""


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
    now: datetime

    @property
    def secrets_namespace(self) -> str:
        """The namespace of the ConfigMaps and Secrets that the policy names."""
        return self.policy.namespace or self.namespace

    @property
    def created(self) -> Sequence[CreatedObject]:
        """The objects that earlier runs of the action have created."""
        return self.result.created

    @property
    def labels(self) -> dict[str, str]:
        """Labels of everything that the action creates."""
        return {POLICY_LABEL: self.policy.key.label, "app.kubernetes.io/managed-by": MANAGER}


@dataclass(frozen=True, slots=True)
class Cleanup:
    """The cleanup of a result that is deleted."""

    client: Client
    workloads: WorkloadClients
    result: LifecycleResult
    has_workload: bool = True
    """Whether the workload cluster stays. Otherwise all objects in it go anyway."""

    @property
    def policy_label(self) -> str:
        """The label of the objects that the policy of the result manages."""
        reference = self.result.spec.policy
        return PolicyKey(reference.kind, reference.namespace, reference.name).label


class ActionRunner(Protocol):
    """An action. The same calls come again after a restart, and from another replica."""

    keeps_up: bool
    """Whether it runs again when a policy whose result is done changes. The objects that it
    created then stay for as long as the policy, and not for as long as the result."""

    async def reconcile(self, run: Run) -> Verdict:
        """Start the work if it has not started, and report its progress."""
        ...

    async def cleanup(self, run: Cleanup) -> None:
        """Delete the objects that must not stay."""
        ...
