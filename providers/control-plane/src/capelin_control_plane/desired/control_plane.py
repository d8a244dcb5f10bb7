"""The desired state of a control plane, from its spec and its Cluster's. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_network
from typing import Final, Literal
from urllib.parse import urlsplit

from capelin.api import amount, with_v
from capelin.api.capi import Cluster
from capelin.client import Client, Destinations
from capelin.pki import Algorithm
from capelin.provider import Blocked
from capelin_embedded.components import OWNED_FLAGS, check_extra, parse_feature_gates

from capelin_control_plane.api import (
    Addons,
    BackendName,
    CapelinControlPlane,
    Certificates,
    ComponentSpec,
    OpenIDConnect,
    Spec,
)
from capelin_control_plane.api.pod_settings import Pods
from capelin_control_plane.api.policy import (
    DEFAULT_POLICY,
    Policy,
    problem_of_host,
    problem_of_port,
)
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.component_files import (
    ENCRYPTION_FLAG,
    AuditPolicyFile,
    EncryptionFiles,
)
from capelin_control_plane.desired.endpoints import other_hosts

RotationStage = Literal["Trusting", "Issuing", "Waiting"]
_STAGES: Final[tuple[RotationStage | None, ...]] = (None, "Trusting", "Issuing", "Waiting")

MOVE_ANNOTATION: Final = "controlplane.cluster.x-k8s.io/move-requested"
"""Its value is a moment. In the hour after it, a pause of the Cluster is that of a move."""
MOVED_FROM_ANNOTATION: Final = "controlplane.cluster.x-k8s.io/capelin-moved-from"
"""The UID of the object whose provider took the final backup, which the restore names."""

DEFAULT_PORT = 6443
DEFAULT_SERVICE_CIDR = "10.96.0.0/12"
DEFAULT_SERVICE_DOMAIN = "cluster.local"
_LOCAL_NAME: Final = re.compile(r"(^|\.)(localhost|0x[0-9a-f]*)$", re.IGNORECASE)
"""Names of the own machine. Resolvers take numbers with a prefix for IPv4 addresses."""
RENEW_ANNOTATION = "controlplane.cluster.x-k8s.io/renew-certificates-before"
"""Its value is a moment. Certificates that were issued before it are renewed."""
ADDRESS_ANNOTATION: Final = "controlplane.cluster.x-k8s.io/capelin-address"
"""The address that the backend allocated. It outlives a move to another management cluster."""
RESTORE_ANNOTATION: Final = "controlplane.cluster.x-k8s.io/restore"
"""Its value is the name of a backup. A suffix such as `@2026-01-31T04:00:00Z` makes it unique. A
prefix such as `prod/` names another Cluster of the namespace, of which the data is a copy."""
_RESTORE: Final = re.compile(
    r"([a-z0-9][-.a-z0-9]{0,252}/)?[0-9]{8}T[0-9]{6}Z(@[-+:.0-9TZ]{1,40})?"
)

Component = Literal["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "relay"]
PROGRAMS: Final[tuple[Component, ...]] = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
)
"""The components that are programs of Kubernetes. The relay is Capelin's own."""

FIELDS: Final[Mapping[Component, str]] = {
    "etcd": "etcd",
    "kube-apiserver": "apiServer",
    "kube-controller-manager": "controllerManager",
    "kube-scheduler": "scheduler",
}
"""By component, the field of the spec with its settings."""

_SHORTEST_REMAINING_VALIDITY = timedelta(days=1)
"""Components read a renewed certificate minutes later, and the provider may be down for longer."""

_FEWEST_SERVICE_ADDRESSES = 16
"""The cluster's DNS has the tenth, and API servers require eight."""


def rotation_stage(step: int) -> RotationStage | None:
    return _STAGES[step % len(_STAGES)]


def revision(step: int) -> int:
    """Identifies the files of a step. Components restart when it changes."""
    # To wait changes no file.
    return step - 1 if rotation_stage(step) == "Waiting" else step


class InvalidSpecError(Blocked):
    """A field has a value that no control plane can run with. Names the field and a remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.INVALID_CONFIGURATION, message)


@dataclass(frozen=True, slots=True)
class ComponentSettings:
    """A user's settings of one component."""

    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    memory_bytes: int | None = None
    cpus: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """Desired state of a control plane."""

    namespace: str
    cluster: str
    version: str
    replicas: int
    etcd_replicas: int
    host: str | None
    """Where the API answers. None lets the backend choose."""
    port: int
    is_port_given: bool = False
    """Whether the spec or the Cluster names the port. Otherwise an exposure may choose another."""
    service_cidrs: tuple[str, ...]
    pod_cidrs: tuple[str, ...]
    service_domain: str
    cert_sans: tuple[str, ...]
    algorithm: Algorithm
    validity: timedelta
    renew_before: timedelta
    renew_issued_before: datetime | None
    """Certificates that were issued before this moment are renewed."""
    rollout_after: datetime | None
    """Instances that were planned before this moment are replaced."""
    changes_at: datetime | None = None
    """The next moment in the future at which a rollout or a renewal is due."""
    now: datetime
    """When this state was computed."""
    settings: Mapping[Component, ComponentSettings]
    addons: Addons
    oidc: Mapping[str, str] = field(default_factory=dict[str, str])
    """The API server's flags for an OpenID Connect provider."""
    audit_policy: AuditPolicyFile | None = None
    encryption: EncryptionFiles = field(default_factory=EncryptionFiles)
    """The configurations of encryption at rest."""
    pods: Pods = field(default_factory=Pods)
    """Settings of the backend Pods."""
    restore: str | None = None
    """The requested restore, as in its annotation."""
    asleep: bool = False
    """Whether no component runs."""
    rotation: int = 0
    """The number of steps of rotations that its CAs and keys have taken."""

    @property
    def renewal_share(self) -> float:
        """The share of a certificate's validity after which it is renewed."""
        left = max(self.renew_before, min(_SHORTEST_REMAINING_VALIDITY, self.validity / 3))
        return max(0.01, 1 - left / self.validity)

    @property
    def authorities(self) -> str | None:
        """Identifies the CAs, so that components restart with others. None with the first ones."""
        step = revision(self.rotation)
        return None if step == 0 else str(step)

    @property
    def first_service_address(self) -> str:
        """The address of the service `kubernetes`."""
        return str(ip_network(self.service_cidrs[0])[1])


def desired_state(
    control_plane: CapelinControlPlane,
    cluster: Cluster,
    now: datetime,
    policy: Policy = DEFAULT_POLICY,
    audit_policy: AuditPolicyFile | None = None,
    *,
    encryption: EncryptionFiles | None = None,
) -> ControlPlane:
    """The desired state of a control plane now.

    Args:
        control_plane: The object.
        cluster: Its Cluster.
        now: The present.
        policy: The flags, variables and addresses that the administrator allows.
        audit_policy: The audit policy that its spec names.
        encryption: The configurations of encryption at rest.

    Raises:
        InvalidSpecError: a field has a value that no control plane can run with.
    """
    spec = control_plane.spec
    network = cluster.spec.cluster_network
    host, port, is_port_given = _endpoint(spec, cluster)
    version = with_v(spec.version)
    renewal = requested_renewal(control_plane)
    if spec.api_server.encryption is not None and ENCRYPTION_FLAG in spec.api_server.extra_args:
        raise InvalidSpecError(
            f"spec.apiServer.extraArgs[{ENCRYPTION_FLAG}]: spec.apiServer.encryption sets this"
            " flag. Decrypt all objects with your own configuration, and leave the flag out"
        )
    component_specs = _component_specs(spec)
    oidc = {} if spec.api_server.oidc is None else _oidc(spec.api_server.oidc)
    return ControlPlane(
        namespace=control_plane.namespace or "",
        cluster=cluster.name,
        version=version,
        replicas=spec.replicas,
        etcd_replicas=spec.etcd.replicas,
        host=host,
        port=port,
        is_port_given=is_port_given,
        service_cidrs=_service_cidrs(network.services.cidr_blocks) or (DEFAULT_SERVICE_CIDR,),
        pod_cidrs=_cidrs(network.pods.cidr_blocks, "pods"),
        service_domain=_name(
            network.service_domain or DEFAULT_SERVICE_DOMAIN,
            "Cluster spec.clusterNetwork.serviceDomain",
        ),
        cert_sans=tuple(
            _host(host, "spec.apiServer.certSANs", may_be_wildcard=True)
            for host in spec.api_server.cert_sans
        )
        + other_hosts(control_plane, cluster),
        algorithm=_algorithm(spec.certificates),
        validity=timedelta(days=spec.certificates.validity_days),
        renew_before=timedelta(days=spec.certificates.renew_before_days),
        renew_issued_before=_past(renewal, now),
        rollout_after=_past(spec.rollout.after, now),
        changes_at=min(
            (moment for moment in (spec.rollout.after, renewal) if moment and moment > now),
            default=None,
        ),
        now=now,
        settings={
            component: _settings(component, settings, version, policy)
            for component, settings in component_specs.items()
        },
        addons=spec.addons,
        oidc=oidc,
        audit_policy=audit_policy,
        encryption=encryption or EncryptionFiles(),
        pods=spec.pods or Pods(),
        restore=requested_restore(control_plane),
    )


def requested_renewal(control_plane: CapelinControlPlane) -> datetime | None:
    """The time in the annotation that asks for renewed certificates. It may be in the future."""
    return annotated_moment(control_plane, RENEW_ANNOTATION)


def requested_restore(control_plane: CapelinControlPlane) -> str | None:
    """The value of the annotation that requests a restore. None without one.

    Raises:
        InvalidSpecError: it does not begin with the name of a backup.
    """
    request = control_plane.metadata.annotations.get(RESTORE_ANNOTATION)
    if request is None or _RESTORE.fullmatch(request):
        return request
    raise InvalidSpecError(
        f"metadata.annotations[{RESTORE_ANNOTATION}]: {request!r} is not the name of a backup:"
        " write one such as 20260131T030000Z"
    )


def annotated_moment(control_plane: CapelinControlPlane, annotation: str) -> datetime | None:
    """The time in an annotation. None without the annotation.

    Raises:
        InvalidSpecError: its value is not a moment.
    """
    text = control_plane.metadata.annotations.get(annotation)
    return None if text is None else moment_in(annotation, text)


def moment_in(annotation: str, text: str) -> datetime:
    """The time in the value of an annotation.

    Raises:
        InvalidSpecError: it is not a moment.
    """
    moment = _moment(text)
    if moment is None:
        raise InvalidSpecError(
            f"metadata.annotations[{annotation}]: {text!r} is not a moment: write one such as"
            " 2026-01-31T12:00:00Z"
        )
    return moment


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    # Without a time zone, it would be ambiguous.
    return None if moment.tzinfo is None else moment


def _past(moment: datetime | None, now: datetime) -> datetime | None:
    # A moment in the future would replace everything in every reconcile until then.
    return moment if moment is not None and moment <= now else None


def _endpoint(spec: Spec, cluster: Cluster) -> tuple[str | None, int, bool]:
    """The control plane's own endpoint, else the Cluster's, and whether one of them has a port."""
    own = spec.control_plane_endpoint
    theirs = cluster.spec.control_plane_endpoint
    host = (own.host if own else None) or theirs.host or None
    if host is not None:
        whose = "" if own and own.host else "Cluster "
        _host(host, f"{whose}spec.controlPlaneEndpoint.host")
    given = (own.port if own else None) or theirs.port
    port = given or cluster.spec.cluster_network.api_server_port or DEFAULT_PORT
    if problem := problem_of_port(port):
        raise InvalidSpecError(
            "port of spec.controlPlaneEndpoint, or of the Cluster's spec.controlPlaneEndpoint or"
            f" spec.clusterNetwork.apiServerPort: {problem}"
        )
    return host, port, bool(given)


def _host(host: str, field_: str, *, may_be_wildcard: bool = False) -> str:
    _name(host, field_)
    if problem := problem_of_host(host.removeprefix("*.") if may_be_wildcard else host):
        raise InvalidSpecError(f"{field_}: {host!r} {problem}")
    return host


def _oidc(oidc: OpenIDConnect) -> dict[str, str]:
    """The flags of a provider that signs users in. API servers fetch its keys from its host."""
    field_ = "spec.apiServer.oidc.issuerURL"
    try:
        url = urlsplit(oidc.issuer_url)
        host, has_more = url.hostname or "", bool(url.query or url.fragment or url.username)
        _ = url.port
    except ValueError:
        host, has_more = "", True
    if has_more or not host:
        raise InvalidSpecError(
            f"{field_}: {oidc.issuer_url!r} is not the URL of a provider: write one such as"
            " https://accounts.example.com"
        )
    _host(host, field_)
    # The API server resolves other names itself, at any time.
    if not Destinations().allows_host(host) or _LOCAL_NAME.search(host):
        raise InvalidSpecError(
            f"{field_}: {host!r} is the provider's own machine or a name that only it can resolve:"
            " write the name of a host that everybody reaches"
        )
    flags = {
        "oidc-issuer-url": oidc.issuer_url,
        "oidc-client-id": oidc.client_id,
        "oidc-username-claim": oidc.username_claim,
        "oidc-username-prefix": oidc.username_prefix,
        "oidc-groups-claim": oidc.groups_claim,
        "oidc-groups-prefix": oidc.groups_prefix,
    }
    return {flag: value for flag, value in flags.items() if value is not None}


def _name(name: str, field_: str) -> str:
    if not name.isascii():
        raise InvalidSpecError(
            f"{field_}: {name!r} has letters that certificates cannot contain: write the name in"
            " its DNS form, such as xn--bcher-kva.example"
        )
    return name


def _service_cidrs(blocks: list[str]) -> tuple[str, ...]:
    cidrs = _cidrs(blocks, "services")
    for cidr in cidrs:
        if ip_network(cidr).num_addresses < _FEWEST_SERVICE_ADDRESSES:
            raise InvalidSpecError(
                f"Cluster spec.clusterNetwork.services.cidrBlocks: {cidr!r} has fewer than the"
                f" {_FEWEST_SERVICE_ADDRESSES} addresses that services need: write a larger"
                f" network such as {DEFAULT_SERVICE_CIDR}"
            )
    return cidrs


def _cidrs(blocks: list[str], what: str) -> tuple[str, ...]:
    for block in blocks:
        try:
            ip_network(block)
        except ValueError as error:
            raise InvalidSpecError(
                f"Cluster spec.clusterNetwork.{what}.cidrBlocks: {block!r} is not a network"
                f" ({error}): write one such as {DEFAULT_SERVICE_CIDR}"
            ) from error
    return tuple(blocks)


def _algorithm(certificates: Certificates) -> Algorithm:
    return "rsa-2048" if certificates.key_algorithm == "RSA-2048" else "ecdsa-p256"


def _component_specs(spec: Spec) -> Mapping[Component, ComponentSpec]:
    return {
        "etcd": spec.etcd,
        "kube-apiserver": spec.api_server,
        "kube-controller-manager": spec.controller_manager,
        "kube-scheduler": spec.scheduler,
    }


def _settings(
    component: Component, spec: ComponentSpec, version: str, policy: Policy
) -> ComponentSettings:
    field_, resources = f"spec.{FIELDS[component]}", spec.resources
    memory = None if resources.memory is None else int(amount(resources.memory))
    cpus = None if resources.cpu is None else float(amount(resources.cpu))
    if memory == 0:
        raise InvalidSpecError(
            f"{field_}.resources.memory: no component runs with {resources.memory}: write an amount"
            " such as 512Mi, or leave it out"
        )
    if cpus == 0:
        raise InvalidSpecError(
            f"{field_}.resources.cpu: no component runs with {resources.cpu}: write an amount such"
            " as 500m, or leave it out"
        )
    _check_arguments(component, spec.extra_args, f"{field_}.extraArgs")
    for flag, value in spec.extra_args.items():
        if problem := policy.problem_of_argument(component, version, flag, value):
            raise InvalidSpecError(f"{field_}.extraArgs[{flag}]: {problem}")
    for name in spec.extra_env:
        if problem := policy.problem_of_variable(component, name):
            raise InvalidSpecError(f"{field_}.extraEnv[{name}]: {problem}")
    return ComponentSettings(
        arguments=spec.extra_args,
        environment=spec.extra_env,
        memory_bytes=memory,
        cpus=cpus,
    )


def _check_arguments(component: Component, arguments: Mapping[str, str], field_: str) -> None:
    try:
        # An object that was stored before the CRD had its rule may still have an owned flag.
        check_extra(arguments, OWNED_FLAGS[component])
    except ValueError as error:
        raise InvalidSpecError(f"{field_}: {error}") from error
    try:
        parse_feature_gates(arguments.get("feature-gates", ""))
    except ValueError as error:
        raise InvalidSpecError(f"{field_}[feature-gates]: {error}") from error


async def complete_spec(client: Client, obj: CapelinControlPlane, backend: BackendName) -> None:
    """Write the version with its `v` and the backend, before anything is started."""
    if obj.spec.version != with_v(obj.spec.version):
        await _add_v(client, obj)
    # Owned also if it is set: a ClusterClass that had a backend may leave it out later.
    written = await client.apply_fields(obj, {"spec.backend": backend})
    obj.spec, obj.metadata = written.spec, written.metadata


async def _add_v(client: Client, control_plane: CapelinControlPlane) -> None:
    """Store the version with its `v`: the contract requires it.

    The provider then gives up the field, so that a server-side apply of the next version has no
    conflict with it.
    """
    meta = control_plane.metadata
    patch = {
        "metadata": {"resourceVersion": meta.resource_version},
        "spec": {"version": with_v(control_plane.spec.version)},
    }
    kind, name, namespace = type(control_plane), control_plane.name, control_plane.namespace
    written = await client.patch(kind, name, namespace, patch)
    others = [
        entry
        for entry in written.metadata.managed_fields or ()
        if (entry.get("manager"), entry.get("operation")) != (client.manager, "Update")
    ]
    patch = {
        "metadata": {
            "resourceVersion": written.metadata.resource_version,
            "managedFields": others,
        }
    }
    written = await client.patch(kind, name, namespace, patch)
    control_plane.spec, control_plane.metadata = written.spec, written.metadata
