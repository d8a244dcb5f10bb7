"""The kinds of the control plane provider."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from capelin.api import (
    Column,
    Conditions,
    Definition,
    Model,
    Object,
    Scale,
    Template,
    Time,
    immutable,
    kind,
    major,
    minor,
    rule,
)
from capelin.api.fields import (
    Host,
    Int64,
    KubernetesVersion,
    Port,
    Quantity,
    Replicas,
    map_list,
    set_list,
)
from capelin.api.rules import Marker, Schema, kept
from capelin.embedded.components import OWNED_FLAGS

GROUP = "controlplane.cluster.x-k8s.io"
VERSION = "v1alpha1"

Image = Annotated[str, MinLen(1), MaxLen(512)]
Text = Annotated[str, MaxLen(2048)]

# Kubernetes takes secure_port for secure-port, and so past the rules about what Capelin sets.
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
Flags = Annotated[dict[str, Text], MaxLen(64), _FLAG_NAMES]
Variables = Annotated[dict[str, Text], MaxLen(64), _VARIABLE_NAMES]


@dataclass(frozen=True, slots=True)
class _NotOurs(Marker):
    """The rules that users leave alone what Capelin sets: a rule a flag, so that each is named."""

    component: str

    def mark(self, schema: Schema) -> None:
        for flag in sorted(OWNED_FLAGS[self.component]):
            rule(f"!('{flag}' in self)", f"Capelin sets --{flag} itself; leave it out").mark(schema)


class Resources(Model):
    """How much of the machine a component may take."""

    memory: Quantity | None = None
    """The most memory, such as `512Mi`.

    Where the provider cannot make control groups, the component only tries to stay below.
    """
    cpu: Quantity | None = None
    """The most processors, such as `500m`.

    Where the provider cannot make control groups, the component takes more if nobody else wants it.
    """


class Component(Model):
    """How one component of the control plane runs."""

    extra_args: Flags = {}
    """Flags beyond those that Capelin sets, without dashes. A change rolls the component."""
    extra_env: Variables = {}
    """Environment variables of the component."""
    resources: Resources = Resources()


class ApiServer(Component):
    """How kube-apiserver runs."""

    extra_args: Annotated[Flags, _NotOurs("kube-apiserver")] = {}
    """Flags beyond those that Capelin sets, without dashes. A change rolls the servers."""
    cert_sans: Annotated[list[Host], MaxLen(32), set_list()] = []
    """Names and addresses that the serving certificate is also good for."""


class ControllerManager(Component):
    """How kube-controller-manager runs."""

    extra_args: Annotated[Flags, _NotOurs("kube-controller-manager")] = {}
    """Flags beyond those that Capelin sets, without dashes."""


class Scheduler(Component):
    """How kube-scheduler runs."""

    extra_args: Annotated[Flags, _NotOurs("kube-scheduler")] = {}
    """Flags beyond those that Capelin sets, without dashes."""


class Etcd(Component):
    """The control plane's own etcd."""

    extra_args: Annotated[Flags, _NotOurs("etcd")] = {}
    """Flags beyond those that Capelin sets, without dashes."""
    replicas: Annotated[
        Literal[1, 3, 5], immutable("the number of etcd members cannot be changed yet")
    ] = 1
    """How many members: 1, 3 or 5. An even number would survive no more failures."""


class Endpoint(Model):
    """Where the API of the workload cluster answers."""

    host: (
        Annotated[Host, immutable("the endpoint's host is in every machine's kubeconfig")] | None
    ) = None
    port: (
        Annotated[Port, immutable("the endpoint's port is in every machine's kubeconfig")] | None
    ) = None


class Certificates(Model):
    """How certificates are made."""

    key_algorithm: Annotated[
        Literal["ECDSA-P256", "RSA-2048"],
        immutable("the key algorithm is that of the certificate authorities, which are kept"),
    ] = "ECDSA-P256"
    """The algorithm of new keys. Some in-memory test providers understand RSA only."""
    validity_days: Annotated[int, Ge(1), Le(3650)] = 365
    """How long a certificate is good. Authorities are good for ten years."""
    renew_before_days: Annotated[int, Ge(0), Le(3649)] = 90
    """How long before its end a certificate is renewed; the kubeconfig is at half its life.

    It is a day at least, or a third of its life where that is less.
    """

    rules = (
        rule(
            # The API server tries the rule on the default, an empty object, before it fills it in.
            "!has(self.renewBeforeDays) || self.renewBeforeDays < self.validityDays",
            "a certificate is renewed before it ends: renewBeforeDays must be less than"
            " validityDays",
            field_path=".renewBeforeDays",
        ),
    )


class Addon(Model):
    """Something that Capelin installs in the workload cluster and keeps there."""

    enabled: bool = True
    image: Image | None = None
    """The image, where it is not the one that the Kubernetes version came with."""


class Addons(Model):
    """What Capelin installs in the workload cluster."""

    core_dns: Addon = Addon()
    kube_proxy: Addon = Addon()


class Rollout(Model):
    """When components are replaced although nothing about them changed."""

    after: Time | None = None
    """Once this moment has passed, what was made before it is replaced, one by one; etcd is not."""


class Making(Model):
    """How a control plane is made, whatever its version and size."""

    backend: Annotated[
        Literal["Processes", "Pods"],
        immutable("a control plane cannot move from one backend to another"),
    ] = "Processes"
    """What it is made of: processes on the machine where the provider runs."""
    api_server: ApiServer = ApiServer()
    controller_manager: ControllerManager = ControllerManager()
    scheduler: Scheduler = Scheduler()
    etcd: Etcd = Etcd()
    certificates: Certificates = Certificates()
    addons: Addons = Addons()
    rollout: Rollout = Rollout()


class Spec(Making):
    """What the control plane is to be."""

    version: KubernetesVersion
    """The Kubernetes version. It goes up, one minor version at a time."""
    replicas: Annotated[Replicas, Le(9)] = 1
    """How many API servers."""
    control_plane_endpoint: Endpoint | None = None
    """Where the API answers. Left out, Capelin chooses an address and writes it here."""

    rules = (
        kept("controlPlaneEndpoint", "the endpoint is in every machine's kubeconfig"),
        rule(
            f"{major('self.version')} == {major('oldSelf.version')}"
            f" && {minor('self.version')} - {minor('oldSelf.version')} in [0, 1]",
            "Kubernetes goes up one minor version at a time and never down",
            field_path=".version",
            message_expression=(
                "'version ' + self.version + ' does not follow ' + oldSelf.version"
                " + ': Kubernetes goes up one minor version at a time and never down'"
            ),
        ),
        rule(
            f"{minor('self.version')} != {minor('oldSelf.version')}"
            " || !self.version.matches('^v?[0-9]+[.][0-9]+[.][0-9]+$')"
            " || !oldSelf.version.matches('^v?[0-9]+[.][0-9]+[.][0-9]+$')"
            " || int(self.version.split('.')[2]) >= int(oldSelf.version.split('.')[2])",
            "a control plane cannot go back to an older patch version",
            field_path=".version",
        ),
    )


class Initialization(Model):
    """What has happened once and stays so."""

    control_plane_initialized: bool | None = None
    """Whether the API has answered."""


class VersionCount(Model):
    """How many API servers run a version."""

    version: KubernetesVersion
    replicas: Replicas | None = None


class Status(Model):
    """What the control plane is."""

    conditions: Conditions = []
    initialization: Initialization = Initialization()
    observed_generation: Int64 | None = None
    """The generation of the spec that this status is about."""
    external_managed_control_plane: bool | None = None
    """Always true: the control plane has no machines among the nodes of its cluster."""
    selector: Annotated[str, MaxLen(2048)] | None = None
    replicas: Replicas | None = None
    ready_replicas: Replicas | None = None
    available_replicas: Replicas | None = None
    up_to_date_replicas: Replicas | None = None
    versions: Annotated[list[VersionCount], MaxLen(100), map_list("version")] = []
    """The versions that API servers run now, the oldest first."""
    version: KubernetesVersion | None = None
    """The oldest of these."""
    initialized: bool | None = None
    """As `initialization.controlPlaneInitialized`, for contract v1beta1."""
    ready: bool | None = None
    """Whether the API answers, for contract v1beta1."""
    updated_replicas: Replicas | None = None
    """As `upToDateReplicas`, for contract v1beta1."""
    unavailable_replicas: Replicas | None = None
    """Those wanted and not available, for contract v1beta1."""


def _condition(type_: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].status'


@kind(
    group=GROUP,
    version=VERSION,
    definition=Definition(
        contracts=("v1beta1", "v1beta2"),
        scale=Scale(selector=".status.selector"),
        columns=(
            Column("Cluster", r".metadata.labels.cluster\.x-k8s\.io/cluster-name"),
            Column("Available", _condition("Available")),
            Column("Replicas", ".spec.replicas", "integer"),
            Column("Ready", ".status.readyReplicas", "integer"),
            Column("Up-to-date", ".status.upToDateReplicas", "integer"),
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


@kind(
    group=GROUP,
    version=VERSION,
    definition=Definition(contracts=("v1beta1", "v1beta2"), categories=("cluster-api",)),
)
class CapelinControlPlaneTemplate(Template[Making]):
    """What control planes are made from, by a ClusterClass."""
