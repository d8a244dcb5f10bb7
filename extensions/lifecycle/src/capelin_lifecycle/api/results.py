"""The results that policies have."""

from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from capelin.api import (
    Column,
    Definition,
    DNSLabel,
    DNSSubdomain,
    Int64,
    KubernetesVersion,
    Model,
    Object,
    Time,
    immutable,
    kind,
)
from capelin.api.capi import Cluster

from capelin_lifecycle.api.names import (
    GROUP,
    VERSION,
    HookName,
    Phase,
    PolicyKind,
    Text,
)


class PolicyReference(Model):
    """The policy of a result.

    By name: after `clusterctl move`, and after a restore, it has another uid.
    """

    kind: PolicyKind
    """Its kind."""
    namespace: DNSLabel | None = None
    """Its namespace, if it has one."""
    name: DNSSubdomain
    """Its name."""


class ClusterReference(Model):
    """The Cluster of a result, in the same namespace.

    The owner reference has its uid: a Cluster that is created again under the same name has
    another, and `clusterctl move` writes the new one.
    """

    name: DNSSubdomain
    """Its name."""


class ResultSpec(Model):
    """What the result is about."""

    id: Annotated[str, MaxLen(64)] = ""
    """Identifies the occurrence of the hook, in every management cluster.

    Names of Jobs and backups, requests to services, and approvals contain it.
    """
    called: Time | None = None
    """When the hook was called first."""
    policy: PolicyReference
    """The policy."""
    cluster: ClusterReference
    """The Cluster."""
    hook: HookName
    """The hook."""
    from_version: KubernetesVersion | None = None
    """Version that the step of the upgrade starts from."""
    to_version: KubernetesVersion | None = None
    """Version that the step of the upgrade leads to, or has reached."""
    target_version: KubernetesVersion | None = None
    """Version of the Cluster's topology when the hook was called."""
    action: Annotated[str, MinLen(1), MaxLen(63)]
    """Name of the policy's action when the hook was called."""
    order: Annotated[int, Ge(-1000), Le(1000)] = 0
    """Order of the policy when the hook was called."""

    rules = (immutable("a result stays about the same occurrence of a hook"),)


class CreatedObject(Model):
    """An object that the action created."""

    target: Literal["Workload", "Management"]
    """The cluster that it is in."""
    api_version: Annotated[str, MaxLen(317)]
    """Its API version."""
    kind: Annotated[str, MaxLen(63)]
    """Its kind."""
    namespace: Annotated[str, MaxLen(63)] | None = None
    """Its namespace, if it has one."""
    name: Annotated[str, MaxLen(253)]
    """Its name."""


class ResultRecord(Model):
    """What has happened. Neither `clusterctl move` nor a restore brings a status."""

    policy: Annotated[str, MaxLen(64)] = ""
    """Hash of the policy's spec that the record is about."""
    attempt: Annotated[Int64, Ge(1)] = 1
    """How often the action has started, this time included."""
    started: Time | None = None
    """When the action started to run."""
    phase: Literal["Done", "Failed"] | None = None
    """How the action ended, if it has."""
    finished: Time | None = None
    """When it ended."""
    message: Text = ""
    """How it went."""
    created: Annotated[list[CreatedObject], MaxLen(512)] = []
    """Objects that the action created."""


class ResultStatus(Model):
    """Observed state of the action."""

    phase: Phase
    """`Waiting` for something, `Running`, `Paused`, `Done` or `Failed`."""
    message: Text = ""
    """What it waits for, or how it went."""
    since: Time
    """When the phase was reached."""
    retry_seconds: Annotated[int, Ge(1), Le(600)] = 10
    """After how many seconds Cluster API may ask again."""


@kind(
    group=GROUP,
    version=VERSION,
    definition=Definition(
        columns=(
            Column("Cluster", ".spec.cluster.name"),
            Column("Hook", ".spec.hook"),
            Column("To", ".spec.toVersion"),
            Column("Policy", ".spec.policy.name"),
            Column("Phase", ".status.phase"),
            Column("Since", ".status.since", "date"),
            Column("Message", ".status.message"),
        ),
        short_names=("lcr",),
        categories=("cluster-api",),
    ),
)
class LifecycleResult(Object[ResultSpec, ResultStatus]):
    """What a policy did for one occurrence of a hook. Delete it to start again."""

    record: ResultRecord | None = None
    """What has happened, and must not happen twice."""

    @property
    def id(self) -> str:
        """Identifies the occurrence of the hook."""
        return self.spec.id or self.uid

    @property
    def created(self) -> list[CreatedObject]:
        """Objects that the action created."""
        return self.record.created if self.record is not None else []

    @property
    def attempt_id(self) -> tuple[str, ...]:
        """Identifies one run of the action: a failed one can be started again."""
        attempt = self.record.attempt if self.record is not None else 1
        return (self.id,) if attempt == 1 else (self.id, str(attempt))

    @property
    def cluster_uid(self) -> str | None:
        """Uid of the Cluster that owns the result; nothing after a restore, which drops owners."""
        for owner in self.metadata.owner_references:
            if owner.kind == Cluster.resource.kind:
                return owner.uid
        return None

    def is_about(self, cluster_uid: str) -> bool:
        """Whether it is about this Cluster of its name, and not about an earlier one."""
        return self.cluster_uid in (None, cluster_uid)
