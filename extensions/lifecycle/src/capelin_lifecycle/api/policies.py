"""The two kinds of policies."""

from datetime import timedelta
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen
from capelin.api import (
    Column,
    Conditions,
    Definition,
    DNSSubdomain,
    Duration,
    Int64,
    Model,
    Object,
    Time,
    kind,
    rule,
    set_list,
)
from capelin.contract import MOVE_LABEL

from capelin_lifecycle.api.actions import (
    Action,
)
from capelin_lifecycle.api.names import (
    BLOCKING_HOOKS,
    GROUP,
    LIFECYCLE_HOOKS,
    UPGRADE_HOOKS,
    VERSION,
    HookName,
    Phase,
    Text,
)
from capelin_lifecycle.api.selectors import (
    Selector,
    Versions,
)


def _only(action: str, *hooks: str) -> str:
    names = ", ".join(f"'{hook}'" for hook in hooks)
    return f"!has(self.action.{action}) || self.hook in [{names}]"


_WITH_WORKLOAD = tuple(hook for hook in LIFECYCLE_HOOKS if hook != "BeforeClusterCreate")


class PolicySpec(Model):
    """Desired state of a policy."""

    cluster_selector: Selector = Selector()
    """Labels of the Clusters that the policy is for. All, if empty."""
    classes: Annotated[list[DNSSubdomain], MaxLen(64), set_list()] = []
    """Names of the ClusterClasses of these Clusters. All, if empty."""
    hook: HookName
    """The hook of Cluster API that the policy answers."""
    versions: Versions | None = None
    """Upgrades that it is for. All, if unset."""
    action: Action
    """What it does."""
    timeout: Annotated[Duration, Ge(timedelta(seconds=1))] = timedelta(hours=1)
    """How long the action may run before the result is `Failed`. Waiting does not count."""
    on_failure: Literal["Block", "Continue"] = "Block"
    """What a result that is `Failed` does to the Cluster.

    With `Continue`, Clusters also go on while the extension does not respond.
    """
    order: Annotated[int, Ge(-1000), Le(1000)] = 0
    """Policies with a greater number start when those with a smaller one are done."""
    suspend: bool = False
    """Whether the policy is left out."""

    rules = (
        rule(
            f"!has(self.versions) || self.hook in {list(UPGRADE_HOOKS)}",
            "only upgrades have versions: remove versions, or choose a hook of an upgrade",
        ),
        rule(_only("quota", "BeforeClusterCreate"), "a quota is for the hook BeforeClusterCreate"),
        rule(_only("patches", "GeneratePatches"), "patches are for the hook GeneratePatches"),
        rule(
            _only("upgradePlan", "GenerateUpgradePlan"),
            "an upgradePlan is for the hook GenerateUpgradePlan",
        ),
        rule(
            _only("validate", *BLOCKING_HOOKS, "ValidateTopology"),
            "validate is for ValidateTopology and for the hooks that can block a Cluster",
        ),
        rule(
            _only("approval", *BLOCKING_HOOKS),
            "an approval is for hooks that can block a Cluster",
        ),
        rule(_only("http", *LIFECYCLE_HOOKS), "http is for the hooks of a Cluster's life"),
        rule(
            _only("apply", *_WITH_WORKLOAD),
            "manifests are applied when there is a workload cluster, after its creation",
        ),
        rule(
            _only("backup", *_WITH_WORKLOAD),
            "a backup is made when there is a workload cluster, after its creation",
        ),
        rule(
            _only("job", *LIFECYCLE_HOOKS)
            + " && !(has(self.action.job) && self.hook == 'BeforeClusterCreate'"
            " && self.action.job.target == 'Workload')",
            "a job is for the hooks of a Cluster's life; before its creation there is no workload"
            " cluster to run it in",
        ),
    )


class ClusterPolicySpec(PolicySpec):
    """Desired state of a cluster-wide policy."""

    namespace_selector: Selector = Selector()
    """Labels of the namespaces of the Clusters. All, if empty."""


# Status


class ResultSummary(Model):
    """A result that is not done."""

    cluster: Annotated[str, MaxLen(512)]
    """Namespace and name of the Cluster."""
    hook: Annotated[str, MaxLen(64)]
    """The hook."""
    phase: Phase
    """What the result is."""
    since: Time | None = None
    """Since when."""
    message: Text = ""
    """Why."""


class ResultCounts(Model):
    """How many results there are."""

    waiting: Annotated[Int64, Ge(0)] = 0
    """Those that wait."""
    running: Annotated[Int64, Ge(0)] = 0
    """Those whose action runs."""
    done: Annotated[Int64, Ge(0)] = 0
    """Those that are done."""
    failed: Annotated[Int64, Ge(0)] = 0
    """Those that have failed."""
    paused: Annotated[Int64, Ge(0)] = 0
    """Those of paused Clusters, or paused themselves."""


class PolicyStatus(Model):
    """Observed state of a policy."""

    observed_generation: Annotated[Int64, Ge(0)] | None = None
    """Generation that the status is about."""
    conditions: Conditions = []
    """`Valid`: whether the policy can be used. `Ready`: whether nothing waits for it."""
    results: ResultCounts | None = None
    """How many results it has. They are LifecycleResults in the Clusters' namespaces."""
    unfinished: Annotated[list[ResultSummary], MaxLen(50)] = []
    """Results that are not done, the oldest 50."""


def _condition(type_: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].status'


_COLUMNS = (
    Column("Hook", ".spec.hook"),
    Column("Valid", _condition("Valid")),
    Column("Waiting", ".status.results.waiting", "integer"),
    Column("Running", ".status.results.running", "integer"),
    Column("Failed", ".status.results.failed", "integer"),
    Column("Done", ".status.results.done", "integer"),
    Column("On failure", ".spec.onFailure", priority=10),
    Column("Suspended", ".spec.suspend", "boolean", priority=10),
    Column("Age", ".metadata.creationTimestamp", "date"),
)


@kind(
    group=GROUP,
    version=VERSION,
    definition=Definition(
        columns=_COLUMNS,
        short_names=("lcp",),
        categories=("cluster-api",),
        labels={MOVE_LABEL: ""},
    ),
)
class LifecyclePolicy(Object[PolicySpec, PolicyStatus]):
    """What happens at a step of the life of the Clusters in a namespace."""


@kind(
    group=GROUP,
    version=VERSION,
    namespaced=False,
    definition=Definition(
        columns=_COLUMNS,
        short_names=("clcp",),
        categories=("cluster-api",),
        labels={MOVE_LABEL: ""},
    ),
)
class ClusterLifecyclePolicy(Object[ClusterPolicySpec, PolicyStatus]):
    """What happens at a step of the life of the Clusters in many namespaces."""


Policy = LifecyclePolicy | ClusterLifecyclePolicy
