"""API types of the control plane provider, with its policy, defaults and reasons."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from capelin.api import (
    Column,
    Definition,
    DNSLabel,
    DNSSubdomain,
    Host,
    Int32,
    Int64,
    Marker,
    Model,
    Object,
    Port,
    Quantity,
    Replicas,
    Scale,
    Schema,
    StoredKubernetesVersion,
    Template,
    Time,
    immutable,
    kept,
    kind,
    major,
    minor,
    rule,
    set_list,
)
from capelin.provider import ControlPlaneStatus
from capelin_embedded.components import OWNED_FLAGS
from pydantic import Field

from capelin_control_plane.api.pod_settings import Pods

GROUP = "controlplane.cluster.x-k8s.io"
VERSION = "v1alpha1"

BackendName = Literal["Processes", "Pods"]
EncryptionProvider = Literal["secretbox", "aesgcm", "kms"]
EncryptedResource = Annotated[
    str,
    MaxLen(253),
    Field(pattern=r"^(secrets|configmaps|[a-z][a-z0-9]*([.][a-z0-9]([-a-z0-9]*[a-z0-9])?){2,})$"),
]
Image = Annotated[str, MinLen(1), MaxLen(512)]
Text = Annotated[str, MaxLen(2048)]
Claim = Annotated[str, MinLen(1), MaxLen(256), Field(pattern="^[!-~]+$")]
Prefix = Annotated[str, MinLen(1), MaxLen(256), Field(pattern="^[!-~]+$")]

# Kubernetes reads secure_port as secure-port: it would evade the rules about owned flags.
_FLAG_NAMES = rule(
    "self.all(flag, flag.matches('^[a-z0-9][a-z0-9-]*$'))",
    "the name of an argument has lower case letters, digits and dashes only, and no dashes in"
    " front: write audit-log-path",
)
_VARIABLE_NAMES = rule(
    "self.all(variable, variable.matches('^[A-Za-z_][A-Za-z0-9_]*$'))",
    "the name of an environment variable has letters, digits and underscores only, and no digit in"
    " front: write GOGC",
)
# Some built-in resources are not stored, and API servers refuse a configuration that names them.
_CUSTOM_RESOURCES = rule(
    "self.all(resource, !resource.endsWith('.k8s.io'))",
    "only secrets, configmaps and custom resources outside k8s.io can be encrypted",
)
Flags = Annotated[dict[str, Text], MaxLen(64), _FLAG_NAMES]
Variables = Annotated[dict[str, Text], MaxLen(64), _VARIABLE_NAMES]


@dataclass(frozen=True, slots=True)
class _NotOurs(Marker):
    """Rules against the flags that Capelin sets: one per flag, so that the message names it."""

    component: str

    def mark(self, schema: Schema) -> None:
        for flag in sorted(OWNED_FLAGS[self.component]):
            rule(f"!('{flag}' in self)", f"Capelin sets --{flag} itself: leave it out").mark(schema)


class Resources(Model):
    """Resource limits of a component."""

    memory: Quantity | None = None
    """Memory limit, such as `512Mi`.

    If the provider cannot create control groups, it is only a goal of the component's garbage
    collector.
    """
    cpu: Quantity | None = None
    """CPU limit, such as `500m`.

    If the provider cannot create control groups, the component may use more while others idle.
    """


class ComponentSpec(Model):
    """Settings of one component of the control plane."""

    extra_args: Flags = {}
    """Additional flags, without dashes. A change rolls the component."""
    extra_env: Variables = {}
    """Additional environment variables."""
    resources: Resources = Resources()
    """Resource limits."""


class OpenIDConnect(Model):
    """An OpenID Connect provider that signs users in."""

    issuer_url: Annotated[str, MaxLen(2048), Field(pattern="^https://")]
    """The provider's URL, exactly as in its tokens."""
    client_id: Annotated[str, MinLen(1), MaxLen(256)]
    """The client that the provider issues tokens for."""
    username_claim: Claim | None = None
    """The claim with the user's name. Without it, Kubernetes reads `sub`."""
    username_prefix: Prefix | None = None
    """Prefix of user names, which avoids clashes with other users. `-` means no prefix."""
    groups_claim: Claim | None = None
    """The claim with the user's groups."""
    groups_prefix: Prefix | None = None
    """Prefix of group names."""


class ConfigMapKey(Model):
    """An entry of a ConfigMap in the same namespace."""

    name: DNSSubdomain
    """The name of the ConfigMap."""
    key: Annotated[str, MinLen(1), MaxLen(253)] = "policy.yaml"
    """The entry."""


class AuditPolicy(Model):
    """Which requests are written to the audit log, which is part of the API server's log."""

    config_map: ConfigMapKey
    """The ConfigMap with the policy, of kind `Policy` and version `audit.k8s.io/v1`. Within minutes
    of a change, the provider rolls the API servers."""


class SecretKey(Model):
    """An entry of a Secret in the same namespace."""

    name: DNSSubdomain
    """The name of the Secret."""
    key: Annotated[str, MinLen(1), MaxLen(253)] = "key"
    """The entry."""


class Encryption(Model):
    """Encryption of objects in etcd."""

    provider: EncryptionProvider = "secretbox"
    """The algorithm, or `kms` for a key management service. Keys of `aesgcm` have to be rotated
    before they have written 200,000 times."""
    kms_plugin: DNSLabel | None = None
    """The KMS v2 plugin that has the key, for the provider `kms`. The provider's option
    `--kms-plugins` lists the names."""
    resources: Annotated[
        list[EncryptedResource], MinLen(1), MaxLen(16), set_list(), _CUSTOM_RESOURCES
    ] = ["secrets"]
    """The resources to encrypt: `secrets`, `configmaps`, or custom resources such as
    `widgets.example.com`."""
    keys_from: SecretKey | None = None
    """A key of yours: exactly 32 random bytes. Write another one to rotate it. Without it, the
    provider generates keys."""
    rotate_after_days: Annotated[int, Ge(1), Le(3650)] | None = None
    """The days after which the provider replaces a key that it has generated."""

    rules = (
        rule(
            "!has(self.keysFrom) || !has(self.rotateAfterDays)",
            "the provider rotates only keys that it has generated: leave rotateAfterDays or"
            " keysFrom out",
            field_path=".rotateAfterDays",
        ),
        rule(
            "!has(self.provider) || self.provider != 'aesgcm' || has(self.keysFrom)"
            " || has(self.rotateAfterDays)",
            "aesgcm is safe only if its keys are rotated: write rotateAfterDays, or use secretbox",
            field_path=".rotateAfterDays",
        ),
        rule(
            "(has(self.provider) && self.provider == 'kms') == has(self.kmsPlugin)",
            "the provider kms needs a kmsPlugin, and the others need none",
            field_path=".kmsPlugin",
        ),
        rule(
            "!has(self.kmsPlugin) || !has(self.keysFrom) && !has(self.rotateAfterDays)",
            "the plugin has the key: leave keysFrom and rotateAfterDays out",
            field_path=".kmsPlugin",
        ),
    )


class ApiServer(ComponentSpec):
    """Settings of kube-apiserver."""

    extra_args: Annotated[Flags, _NotOurs("kube-apiserver")] = {}
    """Additional flags, without dashes. A change rolls the API servers."""
    cert_sans: Annotated[list[Host], MaxLen(32), set_list()] = []
    """Additional subject alternative names of the serving certificate."""
    oidc: OpenIDConnect | None = None
    """An OpenID Connect provider that signs users in. A change rolls the API servers."""
    audit_policy: AuditPolicy | None = None
    """Which requests are written to the audit log."""
    encryption: Encryption | None = None
    """Encryption of Secrets and other objects in etcd. A change rolls the API servers up to three
    times and rewrites the objects."""


class ControllerManager(ComponentSpec):
    """Settings of kube-controller-manager."""

    extra_args: Annotated[Flags, _NotOurs("kube-controller-manager")] = {}
    """Additional flags, without dashes. A change restarts the component."""


class Scheduler(ComponentSpec):
    """Settings of kube-scheduler."""

    extra_args: Annotated[Flags, _NotOurs("kube-scheduler")] = {}
    """Additional flags, without dashes. A change restarts the component."""


class BackupRetention(Model):
    """Which backups to keep. The provider deletes the others after each new one."""

    last: Annotated[int, Ge(1), Le(1000)] = 7
    """The number of newest backups to keep: at least two with `continuous`."""
    days: Annotated[int, Ge(0), Le(3650)] = 0
    """For this many days, today included, also keep the newest backup of each day in UTC."""


class SecretName(Model):
    """A Secret in the same namespace."""

    name: DNSSubdomain
    """The name of the Secret."""


class S3Destination(Model):
    """A folder of a bucket in S3, or in a server with the same API."""

    endpoint: Annotated[str, MaxLen(512), Field(pattern="^https?://[a-z0-9.:\\[\\]-]+$")]
    """The URL of the server, without the bucket, such as `https://s3.eu-central-1.amazonaws.com`.
    The provider's option `--backup-endpoints` has to allow it."""
    region: Annotated[str, MaxLen(32), Field(pattern="^[a-z0-9-]+$")] = "us-east-1"
    """The region of the bucket."""
    bucket: Annotated[
        str,
        MinLen(3),
        MaxLen(63),
        Field(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
    ]
    """The name of the bucket, which has to exist."""
    prefix: (
        Annotated[
            str,
            MaxLen(256),
            Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$"),
        ]
        | None
    ) = None
    """A folder in the bucket. The provider appends the namespace and the name of the cluster."""
    credentials: SecretName
    """The Secret with the entries `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, and
    `AWS_SESSION_TOKEN` for temporary keys."""
    ca_bundle: Annotated[str, MaxLen(32768)] | None = None
    """Certificates of the CAs to trust, in PEM. The CAs of the system, if unset."""


class BackupDestination(Model):
    """Where backups are stored: either in a folder or in S3."""

    folder: (
        Annotated[str, MaxLen(63), Field(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] | None
    ) = None
    """The name of a folder, not a path. The provider creates it in a folder of the namespace below
    its option `--backup-folder`."""
    s3: S3Destination | None = None
    """A bucket."""

    rules = (rule("has(self.folder) != has(self.s3)", "write either folder or s3"),)


class EtcdBackup(Model):
    """Backups of etcd, and of the certificate authorities and keys."""

    schedule: Annotated[str, MinLen(1), MaxLen(128)] | None = None
    """When to take them, as a cron expression such as `0 3 * * *`. Without a schedule, only the
    annotation `controlplane.cluster.x-k8s.io/backup-after` requests them."""
    time_zone: Annotated[str, MinLen(1), MaxLen(64)] = "UTC"
    """The time zone of the schedule, such as `Europe/Berlin`."""
    retention: BackupRetention = BackupRetention()
    """Which backups to keep."""
    destination: BackupDestination
    """Where they are stored."""
    continuous: bool = False
    """Archive also the changes between backups, every few seconds. Data can then be restored as of
    any moment since the last backup but one."""
    encryption_key: SecretKey
    """The key that encrypts them: at least 32 random bytes. Store a copy elsewhere: without it,
    they are useless."""

    rules = (
        rule(
            "!has(self.continuous) || !self.continuous || has(self.schedule)",
            "an archive of changes needs a schedule: each backup begins it again",
            field_path=".continuous",
        ),
    )


class Etcd(ComponentSpec):
    """Settings of the control plane's own etcd cluster."""

    extra_args: Annotated[Flags, _NotOurs("etcd")] = {}
    """Additional flags, without dashes. A change restarts the component."""
    replicas: Literal[1, 3, 5] = 1
    """Number of members: 1, 3 or 5.

    You can change it: members join and leave one at a time, and the API keeps serving.
    """
    backup: EtcdBackup | None = None
    """Backups."""


class ControlPlaneEndpoint(Model):
    """Endpoint of the workload cluster's API."""

    host: (
        Annotated[Host, immutable("the endpoint's host is in every machine's kubeconfig")] | None
    ) = None
    """Host name or IP address."""
    port: (
        Annotated[Port, immutable("the endpoint's port is in every machine's kubeconfig")] | None
    ) = None
    """TCP port."""


class Rotation(Model):
    """A schedule for rotations of the certificate authorities and of the service account key."""

    schedule: Annotated[str, MinLen(1), MaxLen(128)]
    """A cron expression for their begin, such as `0 3 1 */6 *`. The old ones stay trusted until
    a user drops them."""
    time_zone: Annotated[str, MinLen(1), MaxLen(64)] = "UTC"
    """The time zone of the schedule, such as `Europe/Berlin`."""


class Certificates(Model):
    """Settings of the control plane's certificates."""

    key_algorithm: Annotated[
        Literal["ECDSA-P256", "RSA-2048"],
        immutable("existing certificate authorities use this key algorithm"),
    ] = "ECDSA-P256"
    """Algorithm of new keys. Some in-memory test providers understand RSA only."""
    validity_days: Annotated[int, Ge(1), Le(3650)] = 365
    """Validity of a certificate. That of certificate authorities is ten years."""
    renew_before_days: Annotated[int, Ge(0), Le(3649)] = 90
    """Days before its expiry to renew a certificate. Capelin renews the kubeconfig at half its
    validity.

    At least a day, or a third of the validity if that is less.
    """
    rotation: Rotation | None = None
    """When the certificate authorities and the service account key rotate. Without it, only the
    annotation `controlplane.cluster.x-k8s.io/rotate-authorities-before` requests that."""

    rules = (
        rule(
            # The API server evaluates the rule on the default, an empty object, before it fills it.
            "!has(self.renewBeforeDays) || self.renewBeforeDays < self.validityDays",
            "a certificate is renewed before it ends: renewBeforeDays must be less than"
            " validityDays",
            field_path=".renewBeforeDays",
        ),
    )


class Addon(Model):
    """An add-on that Capelin installs in the workload cluster and keeps up to date."""

    enabled: bool = True
    """Whether Capelin installs it. Disabling it later does not uninstall it."""
    image: Image | None = None
    """Image to use instead of that of the Kubernetes version."""


class KubeProxyAddon(Addon):
    """kube-proxy, with its settings."""

    conntrack_max_per_core: Annotated[int, Ge(0), Le(2**31 - 1)] | None = None
    """Most connections that a node tracks for each of its CPU cores. 0 keeps the node's own limit,
    which a node in a container cannot change. Default: that of kube-proxy."""


class Addons(Model):
    """Add-ons of the workload cluster."""

    core_dns: Addon = Addon()
    """CoreDNS, as kubeadm installs it."""
    kube_proxy: KubeProxyAddon = KubeProxyAddon()
    """kube-proxy, as kubeadm installs it."""


class Rollout(Model):
    """Rollout of components whose settings did not change."""

    after: Time | None = None
    """After this moment, Capelin replaces components that started before it, except etcd."""


class Sleep(Model):
    """When the control plane sleeps.

    Asleep, no component runs and the data stays.
    """

    start: Annotated[str, MinLen(1), MaxLen(128)]
    """A cron expression for the moment when it falls asleep, such as `0 20 * * 1-5`."""
    end: Annotated[str, MinLen(1), MaxLen(128)]
    """When it wakes, such as `0 7 * * 1-5`."""
    time_zone: Annotated[str, MinLen(1), MaxLen(64)] = "UTC"
    """The time zone of both, such as `Europe/Berlin`."""


class ControlPlaneTemplateSpec(Model):
    """Settings shared by CapelinControlPlane and CapelinControlPlaneTemplate."""

    backend: (
        Annotated[BackendName, immutable("a control plane cannot move from one backend to another")]
        | None
    ) = None
    """How the control plane runs: as processes on the machine of the provider, or as pods of the
    management cluster.

    If unset, the provider writes the first of its option `--backends`, or `Pods` if `spec.pods` is
    set. It is immutable afterwards.
    """
    pods: Pods | None = None
    """Settings of the backend Pods."""
    api_server: ApiServer = ApiServer()
    """Settings of kube-apiserver."""
    controller_manager: ControllerManager = ControllerManager()
    """Settings of kube-controller-manager."""
    scheduler: Scheduler = Scheduler()
    """Settings of kube-scheduler."""
    etcd: Etcd = Etcd()
    """Settings of etcd."""
    certificates: Certificates = Certificates()
    """Settings of certificates."""
    addons: Addons = Addons()
    """Add-ons of the workload cluster."""
    rollout: Rollout = Rollout()
    """Rollout of components whose settings did not change."""
    sleep: Sleep | None = None
    """When the control plane sleeps.

    The annotations `controlplane.cluster.x-k8s.io/sleep-after` and `wake-after` overrule it until
    its next moment.
    """

    rules = (
        rule(
            "!has(self.pods) || !has(self.backend) || self.backend == 'Pods'",
            "spec.pods is for the backend Pods only: write backend: Pods",
            field_path=".pods",
        ),
        kept("pods", "the control plane runs with them: write the defaults instead"),
    )


class MachineDeletion(Model):
    """Settings of the deletion of Machines."""

    node_drain_timeout_seconds: Int32 | None = None
    """Seconds to wait for a Node to be drained."""
    node_volume_detach_timeout_seconds: Int32 | None = None
    """Seconds to wait for volumes to be detached."""
    node_deletion_timeout_seconds: Int32 | None = None
    """Seconds to try to delete a Node."""


class MachineReadinessGate(Model):
    """A condition that a Machine needs to be ready."""

    condition_type: Annotated[str, MinLen(1), MaxLen(316)]
    """Type of the condition."""
    polarity: Literal["Positive", "Negative"] | None = None
    """Whether the condition has to be true or false."""


class MachineTaint(Model):
    """A taint of Nodes."""

    key: Annotated[str, MinLen(1), MaxLen(317)]
    """Key of the taint."""
    value: Annotated[str, MaxLen(63)] | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    """Effect of the taint."""
    propagation: Literal["Always", "OnInitialization"] | None = None
    """When the taint is set."""


class MachineSpec(Model):
    """Settings of the Machines of the control plane."""

    deletion: MachineDeletion | None = None
    """Settings of their deletion."""
    readiness_gates: Annotated[list[MachineReadinessGate], MaxLen(32)] = []
    """Conditions that they need to be ready."""
    taints: Annotated[list[MachineTaint], MaxLen(64)] = []
    """Taints of their Nodes."""


class MachineTemplate(Model):
    """Machines of the control plane."""

    spec: MachineSpec = MachineSpec()
    """Settings of the Machines."""


class Spec(ControlPlaneTemplateSpec):
    """Desired state of the control plane."""

    version: StoredKubernetesVersion
    """Kubernetes version, such as `v1.36.3`. Upgrades go one minor version at a time.

    If the `v` is missing, the provider adds it.
    """
    replicas: Annotated[Replicas, Le(9)] = 1
    """Number of API servers."""
    machine_template: MachineTemplate | None = None
    """Settings that Cluster API copies from a topology. They have no effect: there are no Machines
    of the control plane."""
    control_plane_endpoint: ControlPlaneEndpoint | None = None
    """Endpoint of the API. If unset, Capelin chooses an address and sets it."""

    rules = (
        *ControlPlaneTemplateSpec.rules,
        kept("controlPlaneEndpoint", "the endpoint is in every machine's kubeconfig"),
    )


class LastBackup(Model):
    """The last complete backup."""

    name: Annotated[str, MaxLen(63)]
    """Its name, as in the destination."""
    time: Time
    """When it was begun. Later writes may be missing."""
    revision: Int64
    """It has every write up to this revision of etcd."""
    bytes: Annotated[Int64, Ge(0)]
    """Size of etcd's snapshot."""


class EncryptionStatus(Model):
    """The present encryption of objects in etcd."""

    key: Annotated[str, MaxLen(63)] | None = None
    """The name of the key that API servers write with. Each key has another name."""
    provider: EncryptionProvider | None = None
    """The algorithm, or `kms`."""
    plugin_key: Annotated[str, MaxLen(256)] | None = None
    """The SHA-256 digest of the identifier of the KMS plugin's key that all objects are stored
    with."""
    stage: Annotated[str, MaxLen(63)] | None = None
    """The stage of a change: `Distributing`, `Promoting`, `Rewriting` or `Dropping`."""
    rewritten: Annotated[Int64, Ge(0)] | None = None
    """How many objects the stage `Rewriting` has rewritten."""


class Status(ControlPlaneStatus):
    """Observed state of the control plane."""

    backup: LastBackup | None = None
    """The last complete backup."""
    encryption: EncryptionStatus | None = None
    """The present encryption of objects in etcd."""
    accepted_move: Annotated[str, MaxLen(63)] | None = None
    """The request of a move that the provider has accepted: the value of its annotation."""


def _follows(version: str, before: str) -> str:
    """CEL: whether a version may come after another one."""
    plain = "matches('^v?[0-9]+[.][0-9]+[.][0-9]+$')"
    return (
        f"{major(version)} == {major(before)}"
        f" && {minor(version)} - {minor(before)} in [0, 1]"
        f" && ({minor(version)} != {minor(before)}"
        f" || !{version}.{plain} || !{before}.{plain}"
        f" || int({version}.split('.')[2]) >= int({before}.split('.')[2]))"
    )


# Users may take back a version that was never reached: the running versions count, not the spec.
# A status without versions means that the control plane has not run yet, or that clusterctl has
# just moved it. Then the provider itself never replaces newer instances with older ones.
_VERSION_FOLLOWS = rule(
    "self.spec.version == oldSelf.spec.version"
    " || (has(oldSelf.status) && has(oldSelf.status.initialization)"
    " && has(oldSelf.status.initialization.controlPlaneInitialized)"
    " && !oldSelf.status.initialization.controlPlaneInitialized)"
    " || (has(oldSelf.status) && has(oldSelf.status.versions) && size(oldSelf.status.versions) > 0"
    f" ? oldSelf.status.versions.all(v, {_follows('self.spec.version', 'v.version')})"
    f" : {_follows('self.spec.version', 'oldSelf.spec.version')})",
    "the version has to follow the running one: Kubernetes goes up one minor version at a time and"
    " never down",
    field_path=".spec.version",
)


def _condition(type_: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].status'


@kind(
    group=GROUP,
    version=VERSION,
    definition=Definition(
        contracts=("v1beta2",),
        scale=Scale(selector=".status.selector"),
        columns=(
            Column("Cluster", r".metadata.labels.cluster\.x-k8s\.io/cluster-name"),
            Column("Available", _condition("Available")),
            Column("Replicas", ".spec.replicas", "integer"),
            Column("Ready", ".status.readyReplicas", "integer"),
            Column("Up-to-date", ".status.upToDateReplicas", "integer"),
            Column("Endpoint", ".spec.controlPlaneEndpoint.host"),
            Column("Paused", _condition("Paused"), priority=10),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Version", ".spec.version"),
        ),
        short_names=("ccp",),
        categories=("cluster-api",),
    ),
)
class CapelinControlPlane(Object[Spec, Status]):
    """A hosted Kubernetes control plane."""

    rules = (_VERSION_FOLLOWS,)


@kind(
    group=GROUP,
    version=VERSION,
    definition=Definition(contracts=("v1beta2",), categories=("cluster-api",)),
)
class CapelinControlPlaneTemplate(Template[ControlPlaneTemplateSpec]):
    """Template of the control planes of a ClusterClass."""
