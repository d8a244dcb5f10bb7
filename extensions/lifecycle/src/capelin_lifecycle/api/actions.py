"""API types of the actions of policies."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from capelin.api import (
    AnyObject,
    AnyValue,
    DNSLabel,
    DNSSubdomain,
    Duration,
    KubernetesVersion,
    Model,
    Quantity,
    Rule,
    Time,
    Unstructured,
    map_list,
    rule,
    set_list,
)
from pydantic import Field

from capelin_lifecycle.api.names import (
    Expression,
    LabelKey,
    Text,
    VersionRange,
)

# Actions


class QuotaLimit(Model):
    """The limit of one resource."""

    resource: Literal["clusters", "nodes", "cpu", "memory"]
    """The resource that is limited."""
    limit: Quantity
    """The most that all Clusters of a group may have together, such as `20` or `512Gi`."""
    expression: Expression | None = None
    """CEL expression for the amount that a Cluster has: a number or a quantity.

    Its variable is `object`, the Cluster. Clusters and nodes are counted without an expression.
    """

    rules = (
        rule(
            "!(self.resource in ['cpu', 'memory']) || has(self.expression)",
            "cpu and memory need an expression: only you know the size of a machine",
        ),
    )


class Quota(Model):
    """Limits the resources that all Clusters of a group have together."""

    group_by: Literal["Namespace", "Label", "Class", "All"] = "Namespace"
    """How the Clusters that the policy selects are grouped."""
    label: LabelKey | None = None
    """The label whose values are the groups, for `Label`."""
    limits: Annotated[list[QuotaLimit], MinLen(1), MaxLen(4), map_list("resource")]
    """The limits. All must hold."""

    rules = (
        rule(
            "(self.groupBy == 'Label') == has(self.label)",
            "set label if groupBy is Label, and only then",
        ),
    )


class Window(Model):
    """A recurring time."""

    schedule: Annotated[str, MinLen(9), MaxLen(128), Field(pattern=r"^[!-~]+( [!-~]+){4}$")]
    """When it opens: a cron expression with five fields, `0 22 * * SAT`."""
    time_zone: Annotated[str, MinLen(1), MaxLen(64)] = "UTC"
    """Time zone of the schedule, `Europe/Berlin`."""
    duration: Duration
    """How long the window stays open."""


class Approval(Model):
    """Waits for a person, for a maintenance window, or for both.

    A person approves with the annotation `approval.runtime.capelin.cluster.x-k8s.io/POLICY` on
    the Cluster. Its value is the code of the LifecycleResult, a colon, and the person's user name.
    An admission policy of the extension rejects names of other users.
    """

    approvers: Annotated[list[Annotated[str, MinLen(1), MaxLen(253)]], MaxLen(64), set_list()] = []
    """Names of the users who may approve. If empty, no approval is needed."""
    window: Window | None = None
    """The maintenance window in which the Cluster may proceed."""
    expiry: Duration | None = None
    """How long to wait before the result is `Failed`. Unlimited, if unset."""

    rules = (
        rule(
            "(has(self.approvers) && size(self.approvers) > 0) || has(self.window)",
            "an approval waits for approvers, a window, or both",
        ),
    )


class OciArtifact(Model):
    """An artifact in an OCI registry. An administrator has to allow the registry."""

    reference: Annotated[
        str,
        MaxLen(512),
        Field(
            pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?(:[0-9]{1,5})?"
            r"(/[a-z0-9]+([._-]+[a-z0-9]+)*)+(:[A-Za-z0-9_][-.A-Za-z0-9_]*)?@sha256:[0-9a-f]{64}$"
        ),
    ]
    """Registry, repository and digest: `ghcr.io/example/addons@sha256:...`.

    A tag before the digest is only for people.
    """
    pull_secret: DNSSubdomain | None = None
    """Name of a Secret of type `kubernetes.io/dockerconfigjson` in the policy's namespace."""
    ca_bundle: Annotated[str, MaxLen(32768)] | None = None
    """Certificates of the CAs to trust, in PEM. The CAs of the system, if unset."""


class Chart(Model):
    """How to render a Helm chart, as `helm template` does."""

    release: Annotated[DNSLabel, MaxLen(53)]
    """Name of the release."""
    namespace: DNSLabel = "default"
    """Namespace of the release. It has to exist, or be in another source."""
    values: AnyObject = {}
    """Values of the chart."""


class Source(Model):
    """A source of manifests: an OCI artifact, a ConfigMap or a Secret."""

    config_map: DNSSubdomain | None = None
    """Name of a ConfigMap in the policy's namespace.

    All its keys are manifests, or its only key is the archive of a chart.
    """
    secret: DNSSubdomain | None = None
    """Name of a Secret in the policy's namespace.

    All its keys are manifests, or its only key is the archive of a chart.
    """
    oci: OciArtifact | None = None
    """An OCI artifact with manifests, or with a chart."""
    chart: Chart | None = None
    """Settings of a Helm chart. The source contains manifests, if unset."""
    versions: VersionRange | None = None
    """Kubernetes versions that the source is for.

    They are compared with the version that an upgrade leads to, or else with the Cluster's own.
    """
    until: Expression | None = None
    """CEL expression that is true when an object of the source is ready.

    Its variable is `object`, the object in the workload cluster. If unset, the extension waits for
    kinds such as Deployments and Jobs.
    """
    failure: Expression | None = None
    """CEL expression for the reason of a failure: a text, and empty without a failure.

    Its variable is `object`. With a failure of any object, the result is `Failed`.
    """

    rules = (
        rule(
            "[has(self.configMap), has(self.secret), has(self.oci)].filter(s, s).size() == 1",
            "name exactly one of configMap, secret and oci",
        ),
    )


class Apply(Model):
    """Applies manifests to the workload cluster and waits until they are ready.

    They are pruned when the policy no longer has them, or is deleted. A manifest with
    `generateName` instead of a name creates an object in each attempt. The extension never changes
    or deletes these objects.
    """

    sources: Annotated[list[Source], MinLen(1), MaxLen(16)]
    """The sources of the manifests."""


class Job(Model):
    """Runs a Job until it is complete or has failed."""

    target: Literal["Workload", "Management"] = "Workload"
    """The cluster that the Job runs in."""
    namespace: DNSLabel = "default"
    """Namespace of the Job in the workload cluster.

    In the management cluster, the Job is in the namespace of the Cluster.
    """
    template: AnyObject
    """Spec of the Job. `ttlSecondsAfterFinished` has no effect: the Job is deleted with the result
    or the policy."""
    log_lines: Annotated[int, Ge(0), Le(50)] = 10
    """Number of last lines of the log that the result shows. Use 0 if they may contain secrets."""


class ValidationRule(Model):
    """A rule that must hold."""

    expression: Expression
    """CEL expression that is true if the rule holds. The guide lists its variables."""
    message: Text
    """Message shown when the expression is false."""


class Validate(Model):
    """Rules for a Cluster or for its topology."""

    rules_: Annotated[list[ValidationRule], MinLen(1), MaxLen(32)] = Field(
        validation_alias="rules", serialization_alias="rules"
    )
    """The rules. All must hold."""


class Freeze(Model):
    """A time in which no upgrade starts."""

    start: Time
    """When the freeze starts."""
    end: Time
    """When the freeze ends."""
    reason: Text = ""
    """Reason shown to users."""

    rules = (rule("self.start < self.end", "end must be later than start"),)


class UpgradePlan(Model):
    """The Kubernetes versions that upgrades may use."""

    versions: Annotated[list[KubernetesVersion], MinLen(1), MaxLen(64), set_list()]
    """Allowed versions. An upgrade over several minor versions uses the newest one of each."""
    freezes: Annotated[list[Freeze], MaxLen(32)] = []
    """Times in which no upgrade starts."""


class PatchVariable(Model):
    """A variable that Clusters set for the patches."""

    name: Annotated[str, MinLen(1), MaxLen(256)]
    """Name of the variable."""
    required: bool = False
    """Whether each Cluster must set the variable."""
    schema_: AnyObject = Field(validation_alias="schema", serialization_alias="schema")
    """OpenAPI v3 schema of the variable."""


class PatchOperation(Model):
    """A change of a template."""

    op: Literal["Set", "Append", "Remove"] = "Set"
    """The operation. `Set` and `Append` create missing fields on the path."""
    path: Annotated[
        str, MinLen(2), MaxLen(1024), Field(pattern=r"^/(spec|metadata/(labels|annotations))(/|$)")
    ]
    """Path in the template. It is a JSON pointer: `/spec/template/spec/replicas`."""
    value: AnyValue = None
    """Value to set or append."""
    value_from: Expression | None = None
    """CEL expression for the value. Its variables are `variables` and `object`, the template."""

    rules = (
        # Rules do not see a value of any type.
        rule("self.op != 'Remove' || !has(self.valueFrom)", "Remove takes no value"),
    )


TemplateUser = Literal[
    "InfrastructureCluster", "ControlPlane", "MachineDeployments", "MachinePools"
]


class TemplatePatch(Model):
    """Changes to the templates of a kind."""

    api_version: Annotated[str, MinLen(1), MaxLen(253)] | None = None
    """API version of the templates. Any, if unset."""
    kind: Annotated[str, MinLen(1), MaxLen(63)]
    """Kind of the templates, `KubeadmConfigTemplate`."""
    used_by: Annotated[list[TemplateUser], MaxLen(4), set_list()] = []
    """Users of the templates. Any, if empty."""
    classes: Annotated[list[Annotated[str, MinLen(1), MaxLen(253)]], MaxLen(64)] = []
    """Patterns for the classes of workers, such as `default-*`. All, if empty."""
    when: Expression | None = None
    """CEL expression that is true for templates to change. All templates, if unset.

    Its variables are `variables` and `object`, the template.
    """
    operations: Annotated[list[PatchOperation], MinLen(1), MaxLen(64)]
    """The changes, in order."""


class PatchVersion(Model):
    """A version of the patches. It cannot be changed, since that would roll out machines.

    Add another version instead, and name it in the ClusterClass.
    """

    name: DNSLabel
    """Name of the version."""
    variables: Annotated[list[PatchVariable], MaxLen(64), map_list("name")] = []
    """Variables of the patches."""
    templates: Annotated[list[TemplatePatch], MinLen(1), MaxLen(64)]
    """The changes, in order."""


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
    """The versions of the patches."""


class ApprovedPlan(Model):
    """Holds a topology with another effect than the plan that `capelin plan --guard` approved.

    The plan is an annotation of the Cluster.
    """

    required: bool = False
    """Whether the policy also holds Clusters without an approved plan."""


ACTIONS = (
    *("quota", "apply", "job", "patches", "approval", "upgradePlan", "validate"),
    "approvedPlan",
)
"""The names of actions in YAML."""

REMOVED: Final[Mapping[str, str]] = {
    "backup": "the action backup was removed: create a policy with apply, and a source with until,"
    " as in docs/lifecycle/backups.md",
    "http": "the action http was removed: run a Runtime Extension that answers the hook, or create"
    " a policy with a job that calls the service",
}
"""Former actions, and what users write instead. Policies may be stored that still have them."""


class _NewOnly(Rule):
    """A rule with an optional `oldSelf`, so that stored objects can be changed and deleted."""

    def mark(self, schema: Unstructured) -> None:
        super().mark(schema)
        schema["x-kubernetes-validations"][-1]["optionalOldSelf"] = True


class Action(Model):
    """The action of a policy: exactly one of these fields."""

    quota: Quota | None = None
    """Limits the resources that Clusters have together."""
    apply: Apply | None = None
    """Applies manifests to the workload cluster."""
    job: Job | None = None
    """Runs a Job."""
    backup: AnyObject | None = None
    """Removed: use `apply` with `until`."""
    patches: Patches | None = None
    """Patches templates."""
    approval: Approval | None = None
    """Waits for a person or a maintenance window."""
    http: AnyObject | None = None
    """Removed: use a Runtime Extension of your own, or `job`."""
    upgrade_plan: UpgradePlan | None = None
    """Plans upgrades."""
    validate_: Validate | None = Field(
        default=None, validation_alias="validate", serialization_alias="validate"
    )
    """Checks rules."""
    approved_plan: ApprovedPlan | None = None
    """Holds changes with another effect than the approved plan."""

    rules = (
        *(
            _NewOnly(
                f"!has(self.{name}) || (oldSelf.hasValue() && has(oldSelf.value().{name}))", instead
            )
            for name, instead in REMOVED.items()
        ),
        rule(
            f"[{', '.join(f'has(self.{name})' for name in (*ACTIONS, *REMOVED))}]"
            ".filter(a, a).size() == 1",
            f"an action has exactly one of {', '.join(ACTIONS)}",
        ),
        rule(
            " && ".join(f"has(self.{name}) == has(oldSelf.{name})" for name in ACTIONS),
            "an action cannot become another one: create another policy",
        ),
    )

    @property
    def name(self) -> str:
        """The action's name in YAML."""
        return next(iter(self.dump()), "")
