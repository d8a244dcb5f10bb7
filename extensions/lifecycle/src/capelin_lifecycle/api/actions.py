"""What policies do."""

from typing import Annotated, Literal

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
    Time,
    map_list,
    rule,
    set_list,
)
from pydantic import Field

from capelin_lifecycle.api.names import (
    Expression,
    Key,
    LabelKey,
    Text,
    VersionRange,
)

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

    url: Annotated[
        str,
        MinLen(9),
        MaxLen(1024),
        Field(pattern=r"^https://[!-\"$-.0->A-~]+(/[!-\"$->@-~]*)?$"),
    ]
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
    """How much of it all Clusters of a group may have together, such as `20` or `512Gi`."""
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
    """Limits how much all Clusters of a group have together.

    To ask a quota system of your own, use the action `http` with the hook BeforeClusterCreate.
    """

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

    schedule: Annotated[str, MinLen(9), MaxLen(128), Field(pattern=r"^[!-~]+( [!-~]+){4}$")]
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

    They are pruned when the policy no longer has them, or goes. OCI artifacts and Helm charts are
    not sources: put what `helm template` writes into a ConfigMap.
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
    used_by: Annotated[list[TemplateUser], MaxLen(4), set_list()] = []
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
