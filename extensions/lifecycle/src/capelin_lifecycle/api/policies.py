"""The two kinds of policies."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final, Literal

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

from capelin_lifecycle.api.actions import Action
from capelin_lifecycle.api.names import (
    BLOCKING_HOOKS,
    GROUP,
    LIFECYCLE_HOOKS,
    UPGRADE_HOOKS,
    VERSION,
    HookName,
    LabelKey,
    Phase,
    PolicyKind,
    Text,
    VersionRange,
)

# Selectors


class Requirement(Model):
    """A requirement of a label selector."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the value of the label is compared with the values."""
    values: Annotated[list[Annotated[str, MaxLen(63)]], MaxLen(32)] = []
    """The values, for `In` and `NotIn`."""

    rules = (
        rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "In and NotIn need values, Exists and DoesNotExist have none",
        ),
    )


class Selector(Model):
    """Selects by labels. An empty one selects everything."""

    match_labels: Annotated[dict[str, Annotated[str, MaxLen(63)]], MaxLen(32)] = {}
    """Labels and the values that they must have."""
    match_expressions: Annotated[list[Requirement], MaxLen(32)] = []
    """Further requirements."""


class Versions(Model):
    """Which upgrades a policy is for."""

    from_: VersionRange | None = None
    """Versions before the upgrade. Hooks after an upgrade do not know them."""
    to: VersionRange | None = None
    """Versions after the upgrade."""


# Specs


def _only(action: str, *hooks: str) -> str:
    names = ", ".join(f"'{hook}'" for hook in hooks)
    return f"!has(self.action.{action}) || self.hook in [{names}]"


def _selects_all(selector: str) -> str:
    parts = [f"{selector}.matchLabels", f"{selector}.matchExpressions"]
    empty = " && ".join(f"(!has({part}) || size({part}) == 0)" for part in parts)
    return f"(!has({selector}) || ({empty}))"


def _without_selector(*conditions: str) -> str:
    return f"self.hook != 'GeneratePatches' || ({' && '.join(conditions)})"


_SELECTS_NOTHING = (
    "patches are for the Clusters of the ClusterClasses that name them: remove the selectors"
)
_WITH_WORKLOAD = tuple(hook for hook in LIFECYCLE_HOOKS if hook != "BeforeClusterCreate")


class PolicySpec(Model):
    """Desired state of a policy."""

    cluster_selector: Selector = Selector()
    """Selects the Clusters that the policy is for. All, if empty."""
    classes: Annotated[list[DNSSubdomain], MaxLen(64), set_list()] = []
    """Names of the ClusterClasses of these Clusters. Any, if empty."""
    hook: HookName
    """The hook of Cluster API that the policy answers."""
    versions: Versions | None = None
    """Upgrades that the policy is for. All, if unset."""
    action: Action
    """The action of the policy."""
    timeout: Annotated[Duration, Ge(timedelta(seconds=1))] = timedelta(hours=1)
    """How long the action may run before the result is `Failed`. Waiting does not count."""
    on_failure: Literal["Block", "Continue"] = "Block"
    """Whether a result that is `Failed` blocks the Cluster.

    With `Continue`, Clusters also proceed while the extension does not respond.
    """
    order: Annotated[int, Ge(-1000), Le(1000)] = 0
    """Policies with a greater order start when all policies with a smaller order are done."""
    suspend: bool = False
    """Whether the policy is ignored."""

    rules = (
        rule(
            f"!has(self.versions) || self.hook in {list(UPGRADE_HOOKS)}",
            "versions is for hooks of upgrades: remove versions, or choose such a hook",
        ),
        rule(_only("quota", "BeforeClusterCreate"), "a quota is for the hook BeforeClusterCreate"),
        rule(_only("patches", "GeneratePatches"), "patches are for the hook GeneratePatches"),
        rule(
            _only("upgradePlan", "GenerateUpgradePlan"),
            "an upgradePlan is for the hook GenerateUpgradePlan",
        ),
        rule(
            _only("approvedPlan", "ValidateTopology"),
            "an approvedPlan is for the hook ValidateTopology",
        ),
        rule(
            _only("validate", *BLOCKING_HOOKS, "ValidateTopology"),
            "validate is for ValidateTopology and for the hooks that can block a Cluster",
        ),
        rule(
            _only("approval", *BLOCKING_HOOKS),
            "an approval is for hooks that can block a Cluster",
        ),
        rule(
            _only("apply", *_WITH_WORKLOAD),
            "apply needs a workload cluster, which does not exist before BeforeClusterCreate",
        ),
        rule(
            _only("job", *LIFECYCLE_HOOKS)
            + " && !(has(self.action.job) && self.hook == 'BeforeClusterCreate'"
            " && self.action.job.target == 'Workload')",
            "a job is for the hooks of a Cluster's life. Before its creation, no workload cluster"
            " exists to run it",
        ),
        rule(
            _without_selector(
                _selects_all("self.clusterSelector"),
                "(!has(self.classes) || size(self.classes) == 0)",
            ),
            _SELECTS_NOTHING,
        ),
    )


class ClusterPolicySpec(PolicySpec):
    """Desired state of a cluster-wide policy."""

    namespace_selector: Selector = Selector()
    """Selects the namespaces of the Clusters. All, if empty."""

    rules = (
        *PolicySpec.rules,
        rule(_without_selector(_selects_all("self.namespaceSelector")), _SELECTS_NOTHING),
    )


# Status


class ResultSummary(Model):
    """A result that is not done."""

    cluster: Annotated[str, MaxLen(512)]
    """Namespace and name of the Cluster."""
    hook: Annotated[str, MaxLen(64)]
    """The hook that Cluster API called."""
    phase: Phase
    """Phase of the result."""
    since: Time | None = None
    """When the result reached its phase."""
    message: Text = ""
    """Message of the result."""


class ResultCounts(Model):
    """Numbers of results by phase."""

    waiting: Annotated[Int64, Ge(0)] = 0
    """Number of results that wait."""
    running: Annotated[Int64, Ge(0)] = 0
    """Number of results whose action runs."""
    done: Annotated[Int64, Ge(0)] = 0
    """Number of results that are done."""
    failed: Annotated[Int64, Ge(0)] = 0
    """Number of results that have failed."""
    paused: Annotated[Int64, Ge(0)] = 0
    """Number of results that are paused, or whose Cluster is."""


class PolicyStatus(Model):
    """Observed state of a policy."""

    observed_generation: Annotated[Int64, Ge(0)] | None = None
    """Generation of the policy that the status describes."""
    conditions: Conditions = []
    """`Valid`: the policy can be used.

    `Ready`: it is also not suspended, its sources exist, and none of its results has failed.
    """
    results: ResultCounts | None = None
    """Numbers of its LifecycleResults, which are in the namespaces of the Clusters."""
    unfinished: Annotated[list[ResultSummary], MaxLen(50)] = []
    """The 50 oldest results that are not done."""


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
    """An action at a hook of the Clusters of a namespace."""


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
    """An action at a hook of the Clusters of all namespaces."""


Policy = LifecyclePolicy | ClusterLifecyclePolicy
POLICY_TYPES: Final[Mapping[PolicyKind, type[Policy]]] = {
    "LifecyclePolicy": LifecyclePolicy,
    "ClusterLifecyclePolicy": ClusterLifecyclePolicy,
}
