"""API types of the results of policies, and of the reservations of quotas."""

from typing import Annotated, Final, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from capelin.api import (
    BaseObject,
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

MOST_CREATED: Final = 512
"""The most objects in a record."""


class PolicyReference(Model):
    """The policy of a result, by name: `clusterctl move` and a restore change its uid."""

    kind: PolicyKind
    """Kind of the policy."""
    namespace: DNSLabel | None = None
    """Namespace of the policy. Unset for a cluster-wide policy."""
    name: DNSSubdomain
    """Name of the policy."""


class ClusterReference(Model):
    """The Cluster of a result, in the same namespace.

    The owner reference has the uid: a Cluster that is created again under the same name has
    another, and `clusterctl move` writes the new one.
    """

    name: DNSSubdomain
    """Name of the Cluster."""


class ResultSpec(Model):
    """The occurrence of a hook that the result is about."""

    id: Annotated[str, MaxLen(64)] = ""
    """Identifies the occurrence of the hook, in every management cluster.

    Names of Jobs and of generated objects, and approvals, contain it.
    """
    called: Time | None = None
    """When Cluster API first called the hook."""
    policy: PolicyReference
    """The policy of the result."""
    cluster: ClusterReference
    """The Cluster that the hook call was about."""
    hook: HookName
    """The hook that Cluster API called."""
    from_version: KubernetesVersion | None = None
    """Version before this step of the upgrade."""
    to_version: KubernetesVersion | None = None
    """Version after this step of the upgrade."""
    target_version: KubernetesVersion | None = None
    """Version of the Cluster's topology at the time of the call."""
    topology: Annotated[str, MaxLen(64)] | None = None
    """Hash of the Cluster's topology that an approval is for. With another topology, the hook
    creates another result."""
    action: Annotated[str, MinLen(1), MaxLen(63)]
    """Name of the policy's action at the time of the call."""
    order: Annotated[int, Ge(-1000), Le(1000)] = 0
    """Order of the policy at the time of the call."""

    rules = (immutable("the spec of a result cannot be changed"),)


class CreatedObject(Model):
    """An object that the action created."""

    target: Literal["Workload", "Management"]
    """The cluster that contains the object."""
    api_version: Annotated[str, MaxLen(317)]
    """API version of the object."""
    kind: Annotated[str, MaxLen(63)]
    """Kind of the object."""
    namespace: Annotated[str, MaxLen(63)] | None = None
    """Namespace of the object. Unset if it has none."""
    name: Annotated[str, MaxLen(253)]
    """Name of the object."""

    @property
    def identity(self) -> tuple[str, str, str, str | None, str]:
        """The same for one object, whatever the version of its API."""
        group = self.api_version.rpartition("/")[0]
        return self.target, group, self.kind, self.namespace, self.name


class ResultRecord(Model):
    """Progress of the action. Unlike the status, it survives `clusterctl move` and a restore."""

    policy: Annotated[str, MaxLen(64)] = ""
    """Hash of the policy's spec that the record is about."""
    attempt: Annotated[Int64, Ge(1)] = 1
    """Number of times that the action has started."""
    started: Time | None = None
    """When the action started."""
    phase: Literal["Done", "Failed"] | None = None
    """Final phase of the action. Unset until it is over."""
    finished: Time | None = None
    """When the action ended."""
    message: Text = ""
    """Final message of the action."""
    created: Annotated[list[CreatedObject], MaxLen(MOST_CREATED)] = []
    """Objects that the action created."""


class ResultStatus(Model):
    """Observed state of the action."""

    phase: Phase
    """`Waiting` for something, `Running`, `Paused`, `Done` or `Failed`."""
    message: Text = ""
    """Why the result waits, or how the action ended."""
    since: Time
    """When the phase was reached."""
    retry_seconds: Annotated[int, Ge(1), Le(600)] = 10
    """Seconds after which Cluster API may call the hook again."""


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
    """Result of a policy for one occurrence of a hook. Delete it to run the policy again."""

    record: ResultRecord | None = None
    """Progress of the action, so that nothing runs twice."""

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
        """Uid of the Cluster that owns the result. None after a restore, which drops owners."""
        for owner in self.metadata.owner_references:
            if owner.kind == Cluster.resource.kind:
                return owner.uid
        return None

    def is_about(self, cluster_uid: str) -> bool:
        """Whether it is about this Cluster of its name, and not about an earlier one."""
        return self.cluster_uid in (None, cluster_uid)


MOST_RESERVATIONS = 1000


@kind(group=GROUP, version=VERSION, definition=Definition(categories=("cluster-api",)))
class LifecycleReservation(BaseObject):
    """Clusters that the quota of a policy has admitted. Only the extension writes it.

    It is a small object of its own: a hook writes it before it admits a Cluster.
    """

    clusters: Annotated[list[Annotated[str, MinLen(1), MaxLen(64)]], MaxLen(MOST_RESERVATIONS)] = []
    """Uids of these Clusters."""
