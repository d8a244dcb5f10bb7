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

from capelin_lifecycle.api.names import (
    GROUP,
    VERSION,
    HookName,
    Phase,
    PolicyKind,
    Text,
)


class PolicyReference(Model):
    """The policy of a result."""

    kind: PolicyKind
    """Its kind."""
    namespace: DNSLabel | None = None
    """Its namespace, if it has one."""
    name: DNSSubdomain
    """Its name."""
    uid: Annotated[str, MinLen(1), MaxLen(64)]
    """Its uid."""


class ClusterReference(Model):
    """The Cluster of a result, in the same namespace."""

    name: DNSSubdomain
    """Its name."""
    uid: Annotated[str, MinLen(1), MaxLen(64)]
    """Its uid: a Cluster that is created anew under the same name has another."""


class ResultSpec(Model):
    """What the result is about."""

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


class ResultStatus(Model):
    """Observed state of the action."""

    phase: Phase
    """`Waiting` for something, `Running`, `Done` or `Failed`."""
    message: Text = ""
    """What it waits for, or how it went."""
    since: Time
    """When the phase was reached."""
    started: Time | None = None
    """When the action started to run."""
    retry_seconds: Annotated[int, Ge(1), Le(600)] = 10
    """After how many seconds Cluster API may ask again."""
    created: Annotated[list[CreatedObject], MaxLen(512)] = []
    """Objects that the action created."""
    observed_generation: Annotated[Int64, Ge(0)] | None = None
    """Generation of the policy that the status is about."""


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
