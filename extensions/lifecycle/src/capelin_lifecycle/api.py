"""API types of the lifecycle extension: policies, and the results that they have."""

from datetime import timedelta
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from capelin.api import (
    AnyObject,
    AnyValue,
    Column,
    Conditions,
    Definition,
    DNSLabel,
    DNSSubdomain,
    Duration,
    Int64,
    KubernetesVersion,
    Model,
    Object,
    Quantity,
    Time,
    immutable,
    kind,
    map_list,
    rule,
    set_list,
)
from pydantic import Field

GROUP = "runtime.capelin.cluster.x-k8s.io"
VERSION = "v1alpha1"

UPGRADE_HOOKS = (
    "BeforeClusterUpgrade",
    "BeforeControlPlaneUpgrade",
    "AfterControlPlaneUpgrade",
    "BeforeWorkersUpgrade",
    "AfterWorkersUpgrade",
    "AfterClusterUpgrade",
)
LIFECYCLE_HOOKS = (
    "BeforeClusterCreate",
    "AfterControlPlaneInitialized",
    *UPGRADE_HOOKS,
    "BeforeClusterDelete",
)

HookName = Literal[
    "BeforeClusterCreate",
    "AfterControlPlaneInitialized",
    "BeforeClusterUpgrade",
    "BeforeControlPlaneUpgrade",
    "AfterControlPlaneUpgrade",
    "BeforeWorkersUpgrade",
    "AfterWorkersUpgrade",
    "AfterClusterUpgrade",
    "BeforeClusterDelete",
    "GeneratePatches",
    "ValidateTopology",
    "GenerateUpgradePlan",
]
Phase = Literal["Waiting", "Running", "Done", "Failed"]
PolicyKind = Literal["LifecyclePolicy", "ClusterLifecyclePolicy"]

Expression = Annotated[str, MinLen(1), MaxLen(4096)]
Text = Annotated[str, MaxLen(1024)]
LabelKey = Annotated[str, MinLen(1), MaxLen(317)]
Key = Annotated[str, MinLen(1), MaxLen(253), Field(pattern=r"^[-._a-zA-Z0-9]+$")]
VersionRange = Annotated[
    str,
    MinLen(1),
    MaxLen(128),
    Field(
        pattern=r"^(>=|<=|>|<|=)?v?[0-9]{1,3}\.[0-9]{1,4}(\.[0-9]{1,4})?"
        r"( (>=|<=|>|<|=)?v?[0-9]{1,3}\.[0-9]{1,4}(\.[0-9]{1,4})?){0,3}$"
    ),
]
"""Comparisons that all have to hold: `>=1.33 <1.35`. A bare `1.34` is that minor version."""

# Selection


class Requirement(Model):
    """A requirement of a label selector."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label's value relates to the values."""
    values: Annotated[list[Annotated[str, MaxLen(63)]], MaxLen(32)] = []
    """The values, for `In` and `NotIn`."""

    rules = (
        rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "In and NotIn need values, and Exists and DoesNotExist take none",
        ),
    )


class Selector(Model):
    """Selects by labels. An empty one selects everything."""

    match_labels: Annotated[dict[str, Annotated[str, MaxLen(63)]], MaxLen(32)] = {}
    """Labels that have to have these values."""
    match_expressions: Annotated[list[Requirement], MaxLen(32)] = []
    """Further requirements."""


class Versions(Model):
    """Which upgrades a policy is for."""

    from_: VersionRange | None = None
    """Versions that an upgrade starts from. Not known to the hooks after an upgrade."""
    to: VersionRange | None = None
    """Versions that an upgrade leads to, or has reached."""


# Connections


class SecretKey(Model):
    """A key of a Secret.

    The Secret is in the policy's namespace, or for a cluster-wide policy in the extension's.
    """

    name: DNSSubdomain
    """Name of the Secret."""
    key: Key
    """Key in the Secret."""


class ClientCertificate(Model):
    """A client certificate in a Secret of type `kubernetes.io/tls`."""

    name: DNSSubdomain
    """Name of the Secret."""


class Http(Model):
    """A service that decides. The guide has its request and response."""

    url: Annotated[str, MinLen(9), MaxLen(1024), Field(pattern=r"^https://[^\s@/?#]+(/[^\s?#]*)?$")]
    """Where to post the request. HTTPS only; redirects are not followed."""
    ca_bundle: Annotated[str, MaxLen(32768)] | None = None
    """Certificates, in PEM, of the CAs to trust instead of the system's."""
    token: SecretKey | None = None
    """A token, sent as `Authorization: Bearer`."""
    client_certificate: ClientCertificate | None = None
    """The certificate to show the service."""
    timeout_seconds: Annotated[int, Ge(1), Le(30)] = 10
    """How long to wait for a response."""


# Actions


class QuotaLimit(Model):
    """The limit of one resource."""

    resource: Literal["clusters", "nodes", "cpu", "memory"]
    """What is limited."""
    limit: Quantity
    """How much of it all Clusters of a group may have together."""
    expression: Expression | None = None
    """How much of it a Cluster has: CEL over `object`, the Cluster, giving a number or a quantity.

    Clusters and nodes are counted without one.
    """

    rules = (
        rule(
            "!(self.resource in ['cpu', 'memory']) || has(self.expression)",
            "cpu and memory need an expression: only you know how large a machine is",
        ),
    )


class Quota(Model):
    """Limits how much all Clusters of a group have together."""

    group_by: Literal["Namespace", "Label", "Class", "All"] = "Namespace"
    """What makes a group of the Clusters that the policy selects."""
    label: LabelKey | None = None
    """The label whose value makes the group, for `Label`."""
    limits: Annotated[list[QuotaLimit], MinLen(1), MaxLen(4), map_list("resource")]
    """The limits, which all have to hold."""

    rules = (
        rule(
            "(self.groupBy == 'Label') == has(self.label)",
            "a label is needed for groupBy Label, and for nothing else",
        ),
    )


class Window(Model):
    """A time that comes again and again."""

    schedule: Annotated[str, MinLen(9), MaxLen(128), Field(pattern=r"^\S+( \S+){4}$")]
    """When it opens: a cron expression with five fields, `0 22 * * SAT`."""
    time_zone: Annotated[str, MinLen(1), MaxLen(64)] = "UTC"
    """Time zone of the schedule, `Europe/Berlin`."""
    duration: Duration
    """How long it stays open."""


class Approval(Model):
    """Waits for a person, for a maintenance window, or for both.

    A person approves with the annotation `approval.runtime.capelin.cluster.x-k8s.io/POLICY` on
    the Cluster, whose value is the person's user name. An admission policy that comes with the
    extension lets nobody write another's name.
    """

    approvers: Annotated[list[Annotated[str, MinLen(1), MaxLen(253)]], MaxLen(64), set_list()] = []
    """User names of those who may approve. Without any, no approval is needed."""
    window: Window | None = None
    """When it may go on."""
    expiry: Duration | None = None
    """How long to wait before the result is `Failed`. For ever, if unset."""

    rules = (
        rule(
            "(has(self.approvers) && size(self.approvers) > 0) || has(self.window)",
            "an approval waits for approvers, a window, or both",
        ),
    )


class Source(Model):
    """Where manifests come from: all keys of a ConfigMap or Secret beside the policy."""

    config_map: DNSSubdomain | None = None
    """Name of a ConfigMap."""
    secret: DNSSubdomain | None = None
    """Name of a Secret."""
    versions: VersionRange | None = None
    """Kubernetes versions that it is for: of the upgrade's end, else the Cluster's own."""

    rules = (
        rule("has(self.configMap) != has(self.secret)", "name either a configMap or a secret"),
    )


class Apply(Model):
    """Applies manifests to the workload cluster and waits until they are ready.

    They are pruned when the policy no longer has them, or goes.
    """

    sources: Annotated[list[Source], MinLen(1), MaxLen(16)]
    """Where the manifests are."""


class Job(Model):
    """Runs a Job to its end."""

    target: Literal["Workload", "Management"] = "Workload"
    """Which cluster it runs in."""
    namespace: DNSLabel = "default"
    """Its namespace in the workload cluster. In the management cluster it is the Cluster's."""
    template: AnyObject
    """Spec of the Job."""
    log_lines: Annotated[int, Ge(0), Le(50)] = 10
    """How many of the last lines of its log the result shows. Use 0 if they may hold secrets."""


class Velero(Model):
    """A backup by Velero in the workload cluster."""

    namespace: DNSLabel = "velero"
    """Namespace of Velero."""
    spec: AnyObject = {}
    """Spec of the Backup."""


class VolumeSnapshots(Model):
    """A CSI snapshot of the volume of every bound claim."""

    class_name: DNSSubdomain | None = None
    """Name of the VolumeSnapshotClass. The default one, if unset."""
    namespaces: Annotated[list[DNSLabel], MaxLen(64), set_list()] = []
    """Namespaces of the claims. All, if empty."""


class Backup(Model):
    """Backs up the workload cluster and waits until the backup is complete. It is kept."""

    velero: Velero | None = None
    """By Velero."""
    volume_snapshots: VolumeSnapshots | None = None
    """By CSI snapshots."""

    rules = (
        rule(
            "has(self.velero) != has(self.volumeSnapshots)",
            "choose either velero or volumeSnapshots",
        ),
    )


class ValidationRule(Model):
    """A rule that has to hold."""

    expression: Expression
    """CEL, true if the rule holds. See the guide for its variables."""
    message: Text
    """What to say where it does not."""


class Validate(Model):
    """Rules that a Cluster, or its topology, has to keep."""

    rules_: Annotated[list[ValidationRule], MinLen(1), MaxLen(32)] = Field(
        validation_alias="rules", serialization_alias="rules"
    )
    """The rules, which all have to hold."""


class Freeze(Model):
    """A time in which no upgrade starts."""

    start: Time
    """Its beginning."""
    end: Time
    """Its end."""
    reason: Text = ""
    """Why, for people."""

    rules = (rule("self.start < self.end", "a freeze ends after it starts"),)


class UpgradePlan(Model):
    """Which versions upgrades go through, and to which they may go."""

    versions: Annotated[list[KubernetesVersion], MinLen(1), MaxLen(64), set_list()]
    """Versions that may run. An upgrade over several minor versions goes through the newest of
    each."""
    freezes: Annotated[list[Freeze], MaxLen(32)] = []
    """Times in which no upgrade starts."""


class PatchVariable(Model):
    """A variable that Clusters set for the patches."""

    name: Annotated[str, MinLen(1), MaxLen(256)]
    """Its name."""
    required: bool = False
    """Whether each Cluster has to set it."""
    schema_: AnyObject = Field(validation_alias="schema", serialization_alias="schema")
    """Its OpenAPI v3 schema."""


class PatchOperation(Model):
    """A change of a template."""

    op: Literal["Set", "Append", "Remove"] = "Set"
    """What to do. `Set` and `Append` create what is missing on the way."""
    path: Annotated[
        str, MinLen(2), MaxLen(1024), Field(pattern=r"^/(spec|metadata/(labels|annotations))(/|$)")
    ]
    """Where in the template, as a JSON pointer: `/spec/template/spec/replicas`."""
    value: AnyValue = None
    """The value."""
    value_from: Expression | None = None
    """CEL over `variables` and `object`, the template, giving the value."""

    rules = (
        # Rules do not see a value of any type.
        rule("self.op != 'Remove' || !has(self.valueFrom)", "Remove takes no value"),
    )


TemplateUser = Literal[
    "InfrastructureCluster", "ControlPlane", "MachineDeployments", "MachinePools"
]


class TemplatePatch(Model):
    """Changes of the templates of a kind."""

    api_version: Annotated[str, MinLen(1), MaxLen(253)] | None = None
    """API version of the templates. Any, if unset."""
    kind: Annotated[str, MinLen(1), MaxLen(63)]
    """Kind of the templates, `KubeadmConfigTemplate`."""
    used_by: Annotated[
        list[
            Literal["InfrastructureCluster", "ControlPlane", "MachineDeployments", "MachinePools"]
        ],
        MaxLen(4),
        set_list(),
    ] = []
    """What uses the templates. Anything, if empty."""
    classes: Annotated[list[Annotated[str, MinLen(1), MaxLen(253)]], MaxLen(64)] = []
    """Classes of the MachineDeployments or MachinePools, as `default-*`. All, if empty."""
    when: Expression | None = None
    """CEL over `variables` and `object`: whether a template is changed. Always, if unset."""
    operations: Annotated[list[PatchOperation], MinLen(1), MaxLen(64)]
    """The changes, in this order."""


class PatchVersion(Model):
    """A version of the patches, which cannot be changed, since that would roll out machines.

    Add another one instead, and name it in the ClusterClass when it is ready for it.
    """

    name: DNSLabel
    """Its name."""
    variables: Annotated[list[PatchVariable], MaxLen(64), map_list("name")] = []
    """Variables of the patches."""
    templates: Annotated[list[TemplatePatch], MinLen(1), MaxLen(64)]
    """The changes, in this order."""


class Patches(Model):
    """Patches of the templates of ClusterClasses.

    A ClusterClass names the policy and the version in the settings of an external patch.
    """

    versions: Annotated[
        list[PatchVersion],
        MinLen(1),
        MaxLen(16),
        map_list("name"),
    ]
    """The versions."""


ACTIONS = (
    *("quota", "apply", "job", "backup", "patches", "approval", "http", "upgradePlan", "validate"),
)
"""The names of actions, as in YAML."""


class Action(Model):
    """What a policy does: exactly one of these."""

    quota: Quota | None = None
    """Limits what Clusters have together."""
    apply: Apply | None = None
    """Applies manifests to the workload cluster."""
    job: Job | None = None
    """Runs a Job."""
    backup: Backup | None = None
    """Backs up the workload cluster."""
    patches: Patches | None = None
    """Patches templates."""
    approval: Approval | None = None
    """Waits for a person or a maintenance window."""
    http: Http | None = None
    """Asks a service."""
    upgrade_plan: UpgradePlan | None = None
    """Plans upgrades."""
    validate_: Validate | None = Field(
        default=None, validation_alias="validate", serialization_alias="validate"
    )
    """Checks rules."""

    rules = (
        rule(
            f"[{', '.join(f'has(self.{name})' for name in ACTIONS)}].filter(a, a).size() == 1",
            f"an action has exactly one of {', '.join(ACTIONS)}",
        ),
    )

    @property
    def name(self) -> str:
        """Which action it is, as in YAML."""
        return next(iter(self.dump()), "")


def _only(action: str, *hooks: str) -> str:
    names = ", ".join(f"'{hook}'" for hook in hooks)
    return f"!has(self.action.{action}) || self.hook in [{names}]"


_WITH_WORKLOAD = tuple(hook for hook in LIFECYCLE_HOOKS if hook != "BeforeClusterCreate")
_BLOCKING = tuple(hook for hook in LIFECYCLE_HOOKS if hook != "AfterControlPlaneInitialized")


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
            _only("validate", *_BLOCKING, "ValidateTopology"),
            "validate is for ValidateTopology and for the hooks that can block a Cluster",
        ),
        rule(
            _only("approval", *_BLOCKING),
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


class Reservation(Model):
    """A Cluster that a quota has admitted and that does not exist as a whole yet."""

    uid: Annotated[str, MaxLen(64)]
    """The Cluster's uid."""
    cluster: Annotated[str, MaxLen(512)]
    """Its namespace and name."""


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
    reservations: Annotated[list[Reservation], MaxLen(1000), map_list("uid")] = []
    """Clusters that a quota has admitted and that are about to be created."""


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
    definition=Definition(columns=_COLUMNS, short_names=("lcp",), categories=("cluster-api",)),
)
class LifecyclePolicy(Object[PolicySpec, PolicyStatus]):
    """What happens at a step of the life of the Clusters in a namespace."""


@kind(
    group=GROUP,
    version=VERSION,
    namespaced=False,
    definition=Definition(columns=_COLUMNS, short_names=("clcp",), categories=("cluster-api",)),
)
class ClusterLifecyclePolicy(Object[ClusterPolicySpec, PolicyStatus]):
    """What happens at a step of the life of the Clusters in many namespaces."""


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


Policy = LifecyclePolicy | ClusterLifecyclePolicy

__all__ = [
    "ACTIONS",
    "GROUP",
    "LIFECYCLE_HOOKS",
    "UPGRADE_HOOKS",
    "VERSION",
    "Action",
    "Apply",
    "Approval",
    "Backup",
    "ClusterLifecyclePolicy",
    "ClusterPolicySpec",
    "ClusterReference",
    "CreatedObject",
    "Freeze",
    "HookName",
    "Http",
    "Job",
    "LifecyclePolicy",
    "LifecycleResult",
    "PatchOperation",
    "PatchVersion",
    "Patches",
    "Phase",
    "Policy",
    "PolicyReference",
    "PolicySpec",
    "PolicyStatus",
    "Quota",
    "Reservation",
    "ResultCounts",
    "ResultSpec",
    "ResultStatus",
    "ResultSummary",
    "Selector",
    "Source",
    "TemplatePatch",
    "UpgradePlan",
    "Validate",
    "Versions",
    "Window",
]
