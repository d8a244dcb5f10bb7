"""What a control plane is to be: from its spec and its Cluster's to plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_network
from typing import Final, Literal, get_args

from capelin.api.fields import amount
from capelin.api.views.capi import Cluster
from capelin.embedded.components import OWNED_FLAGS, check_extra
from capelin.embedded.components.arguments import feature_gates
from capelin.pki import Algorithm

from capelin_control_plane.api import (
    ApiServer,
    CapelinControlPlane,
    Certificates,
    Component,
    ControllerManager,
    Etcd,
    Scheduler,
    Spec,
)
from capelin_control_plane.workload import Addon

DEFAULT_PORT = 6443
DEFAULT_SERVICE_CIDR = "10.96.0.0/12"
DEFAULT_SERVICE_DOMAIN = "cluster.local"
RENEW_ANNOTATION = "controlplane.cluster.x-k8s.io/renew-certificates-before"
"""Its value is a moment: every certificate that was made before it is made anew."""

Program = Literal["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
PROGRAMS: Final[tuple[Program, ...]] = get_args(Program)
"""What a control plane is made of."""

FIELDS: Final[Mapping[str, str]] = {
    "etcd": "etcd",
    "kube-apiserver": "apiServer",
    "kube-controller-manager": "controllerManager",
    "kube-scheduler": "scheduler",
}
"""By program, where in a spec users say how it runs."""

_LEAST_LEFT = timedelta(days=1)
"""Who uses a certificate reads a new one minutes later, and a provider may be down for longer."""

_FEWEST_SERVICE_ADDRESSES = 16
"""The cluster's DNS has the tenth, and API servers take no fewer than eight."""


class RefusedSpecError(ValueError):
    """A spec asks for something that cannot be; names the field and what to do."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a user says about how one component runs."""

    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    memory_bytes: int | None = None
    cpus: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """A control plane as it is wanted."""

    namespace: str
    cluster: str
    version: str
    replicas: int
    etcd_replicas: int
    host: str | None
    """Where the API is to answer; none while nobody has said, and the backend chooses."""
    port: int
    service_cidrs: tuple[str, ...]
    pod_cidrs: tuple[str, ...]
    service_domain: str
    cert_sans: tuple[str, ...]
    algorithm: Algorithm
    validity: timedelta
    renew_before: timedelta
    renew_made_before: datetime | None
    rollout_after: datetime | None
    """The moment before which nothing may have been planned that runs; of one that has passed."""
    as_of: datetime
    """When it is wanted so."""
    tuning: Mapping[Program, Tuning]
    coredns: Addon | None
    kube_proxy: Addon | None

    @property
    def renewal_share(self) -> float:
        """The share of a certificate's life after which it is renewed, well before its end."""
        left = max(self.renew_before, min(_LEAST_LEFT, self.validity / 3))
        return max(0.01, 1 - left / self.validity)

    @property
    def first_service_address(self) -> str:
        """The address of the service `kubernetes`."""
        return str(ip_network(self.service_cidrs[0])[1])


def desired(control_plane: CapelinControlPlane, cluster: Cluster, now: datetime) -> ControlPlane:
    """What the control plane is to be now."""
    spec = control_plane.spec
    network = cluster.spec.cluster_network
    host, port = _endpoint(spec, cluster)
    return ControlPlane(
        namespace=control_plane.namespace or "",
        cluster=cluster.name,
        version=spec.version,
        replicas=spec.replicas,
        etcd_replicas=spec.etcd.replicas,
        host=host,
        port=port,
        service_cidrs=_service_cidrs(network.services.cidr_blocks) or (DEFAULT_SERVICE_CIDR,),
        pod_cidrs=_cidrs(network.pods.cidr_blocks, "pods"),
        service_domain=_name(
            network.service_domain or DEFAULT_SERVICE_DOMAIN,
            "Cluster spec.clusterNetwork.serviceDomain",
        ),
        cert_sans=tuple(
            _name(each, "spec.apiServer.certSANs") for each in spec.api_server.cert_sans
        ),
        algorithm=_algorithm(spec.certificates),
        validity=timedelta(days=spec.certificates.validity_days),
        renew_before=timedelta(days=spec.certificates.renew_before_days),
        renew_made_before=_if_it_has_come(renewal_asked_for(control_plane), now),
        rollout_after=_if_it_has_come(spec.rollout.after, now),
        as_of=now,
        tuning={
            "etcd": _tuning("etcd", spec.etcd),
            "kube-apiserver": _tuning("kube-apiserver", spec.api_server),
            "kube-controller-manager": _tuning("kube-controller-manager", spec.controller_manager),
            "kube-scheduler": _tuning("kube-scheduler", spec.scheduler),
        },
        coredns=Addon(spec.addons.core_dns.image) if spec.addons.core_dns.enabled else None,
        kube_proxy=Addon(spec.addons.kube_proxy.image) if spec.addons.kube_proxy.enabled else None,
    )


def renewal_asked_for(control_plane: CapelinControlPlane) -> datetime | None:
    """The moment at which certificates that were made before it are made anew, if one is said."""
    said = control_plane.metadata.annotations.get(RENEW_ANNOTATION)
    if said is None:
        return None
    moment = _moment(said)
    if moment is None:
        raise RefusedSpecError(
            f"metadata.annotations[{RENEW_ANNOTATION}]: {said!r} is not a moment; write one such as"
            " 2026-01-31T12:00:00Z"
        )
    return moment


def _moment(said: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(said)
    except ValueError:
        return None
    # Without a time zone, it could be any of many.
    return None if moment.tzinfo is None else moment


def _if_it_has_come(moment: datetime | None, now: datetime) -> datetime | None:
    # Before a moment that is still to come, everything is made, again and again.
    return moment if moment is not None and moment <= now else None


def _endpoint(spec: Spec, cluster: Cluster) -> tuple[str | None, int]:
    """The control plane's own endpoint, else the Cluster's; a port of its own where one is said."""
    own = spec.control_plane_endpoint
    theirs = cluster.spec.control_plane_endpoint
    host = (own.host if own else None) or theirs.host or None
    if host is not None:
        whose = "" if own and own.host else "Cluster "
        _name(host, f"{whose}spec.controlPlaneEndpoint.host")
    port = (
        (own.port if own else None)
        or theirs.port
        or cluster.spec.cluster_network.api_server_port
        or DEFAULT_PORT
    )
    return host, port


def _name(name: str, field_: str) -> str:
    if not name.isascii():
        raise RefusedSpecError(
            f"{field_}: {name!r} has letters that no certificate can have; write the name as DNS"
            " knows it, such as xn--bcher-kva.example"
        )
    return name


def _service_cidrs(blocks: list[str]) -> tuple[str, ...]:
    cidrs = _cidrs(blocks, "services")
    for cidr in cidrs:
        if ip_network(cidr).num_addresses < _FEWEST_SERVICE_ADDRESSES:
            raise RefusedSpecError(
                f"Cluster spec.clusterNetwork.services.cidrBlocks: {cidr!r} has fewer than the"
                f" {_FEWEST_SERVICE_ADDRESSES} addresses that services need; write a larger"
                f" network such as {DEFAULT_SERVICE_CIDR}"
            )
    return cidrs


def _cidrs(blocks: list[str], what: str) -> tuple[str, ...]:
    for block in blocks:
        try:
            ip_network(block)
        except ValueError as error:
            raise RefusedSpecError(
                f"Cluster spec.clusterNetwork.{what}.cidrBlocks: {block!r} is not a network"
                f" ({error}); write one such as {DEFAULT_SERVICE_CIDR}"
            ) from error
    return tuple(blocks)


def _algorithm(certificates: Certificates) -> Algorithm:
    return "rsa-2048" if certificates.key_algorithm == "RSA-2048" else "ecdsa-p256"


def _tuning(
    program: Program, component: Component | ApiServer | ControllerManager | Scheduler | Etcd
) -> Tuning:
    field_, resources = f"spec.{FIELDS[program]}", component.resources
    memory = None if resources.memory is None else int(amount(resources.memory))
    cpus = None if resources.cpu is None else float(amount(resources.cpu))
    if memory == 0:
        raise RefusedSpecError(
            f"{field_}.resources.memory: nothing runs with {resources.memory}; write an amount"
            " such as 512Mi, or leave it out"
        )
    if cpus == 0:
        raise RefusedSpecError(
            f"{field_}.resources.cpu: nothing runs with {resources.cpu}; write an amount such as"
            " 500m, or leave it out"
        )
    _check_arguments(program, component.extra_args, f"{field_}.extraArgs")
    return Tuning(
        arguments=component.extra_args,
        environment=component.extra_env,
        memory_bytes=memory,
        cpus=cpus,
    )


def _check_arguments(program: Program, arguments: Mapping[str, str], field_: str) -> None:
    try:
        # What was stored before the API server refused it is still there.
        check_extra(arguments, OWNED_FLAGS[program])
    except ValueError as error:
        raise RefusedSpecError(f"{field_}: {error}") from error
    try:
        feature_gates(arguments.get("feature-gates", ""))
    except ValueError as error:
        raise RefusedSpecError(f"{field_}[feature-gates]: {error}") from error
