"""Command lines of a control plane's components, the same for both backends. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal

from capelin.api import parse_duration
from capelin_embedded.components import Etcd, KubeApiServer, KubeControllerManager, KubeScheduler

from capelin_control_plane.desired.component_files import ENCRYPTION_FLAG, ComponentFiles
from capelin_control_plane.desired.control_plane import Component, ControlPlane

Controller = Literal["kube-controller-manager", "kube-scheduler"]
CONTROLLER_PORTS: Final[Mapping[Controller, int]] = {
    "kube-controller-manager": 10257,
    "kube-scheduler": 10259,
}
"""The port at which a controller answers probes."""
SHUTDOWN_DELAY: Final = "shutdown-delay-duration"

# Less memory for a little more processor time: many control planes share a machine.
GO_ENVIRONMENT: Mapping[Component, Mapping[str, str]] = {
    "etcd": {},
    "kube-apiserver": {"GOGC": "50"},
    "kube-controller-manager": {"GOGC": "50"},
    "kube-scheduler": {"GOGC": "50"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdMember:
    """The arguments that differ between etcd members."""

    name: str
    data: PurePath
    listen_address: str
    advertise_host: str
    client_port: int
    peer_port: int
    metrics_port: int
    state: str
    """`new`, `existing`, or a reference to an environment variable with one of them."""


def etcd_arguments(
    desired: ControlPlane,
    files: ComponentFiles,
    member: EtcdMember,
    *,
    members: Mapping[str, str] | str,
    token: str,
) -> tuple[str, ...]:
    """The arguments of an etcd member.

    Args:
        desired: The control plane.
        files: Where the member finds its certificates.
        member: The member.
        members: The peer URLs of all members by name, or the variable with them.
        token: The same for all members of a cluster, and different from other clusters'.
    """
    return Etcd(
        name=member.name,
        data=member.data,
        listen_address=member.listen_address,
        advertise_host=member.advertise_host,
        client_port=member.client_port,
        peer_port=member.peer_port,
        metrics_port=member.metrics_port,
        members=members,
        token=token,
        state=member.state,
        serving=files.pair("etcd"),
        client_ca=files.ca("etcd"),
        peer=files.pair("etcd"),
        peer_ca=files.ca("etcd"),
        extra=desired.settings["etcd"].arguments,
    ).arguments


def api_server_arguments(
    desired: ControlPlane,
    files: ComponentFiles,
    *,
    address: str,
    advertise_address: str,
    port: int,
    etcd_urls: tuple[str, ...],
    defaults: Mapping[str, str],
    features: Mapping[str, bool] | None = None,
) -> tuple[str, ...]:
    """The arguments of an API server.

    A user's flags replace the `defaults` of its backend, and a user's feature gates its `features`.
    """
    return KubeApiServer(
        bind_address=address,
        advertise_address=advertise_address,
        port=port,
        etcd_urls=etcd_urls,
        etcd_client=files.client("apiserver-etcd-client", "etcd"),
        serving=files.pair("apiserver"),
        client_ca=files.ca("ca"),
        front_proxy=files.client("front-proxy-client", "proxy"),
        kubelet_client=files.pair("apiserver-kubelet-client"),
        service_account_issuer=f"https://kubernetes.default.svc.{desired.service_domain}",
        service_account_public_keys=(files.service_account_public_key,),
        service_account_key=files.service_account_key,
        service_cidr=",".join(desired.service_cidrs),
        # It would register its own address behind the endpoint, which nodes cannot use.
        registers_itself=False,
        features=features or {},
        extra={
            **defaults,
            **desired.oidc,
            **_audit(desired, files),
            **desired.settings["kube-apiserver"].arguments,
            # Last: another configuration could not read stored objects.
            **_encryption(desired, files),
        },
    ).arguments


def _encryption(desired: ControlPlane, files: ComponentFiles) -> Mapping[str, str]:
    file = desired.encryption.current
    return {} if file is None else {ENCRYPTION_FLAG: str(files.pki / file.name)}


def _audit(desired: ControlPlane, files: ComponentFiles) -> Mapping[str, str]:
    if desired.audit_policy is None:
        return {}
    # To the log of the process, whose size is limited.
    return {
        "audit-policy-file": str(files.pki / desired.audit_policy.name),
        "audit-log-path": "-",
    }


def controller_arguments(
    desired: ControlPlane,
    files: ComponentFiles,
    component: Controller,
    *,
    address: str,
    elects_leader: bool,
) -> tuple[str, ...]:
    """The arguments of a controller manager or a scheduler."""
    port, extra = CONTROLLER_PORTS[component], desired.settings[component].arguments
    if component == "kube-scheduler":
        return KubeScheduler(
            kubeconfig=files.kubeconfig("scheduler"),
            bind_address=address,
            port=port,
            serving=files.pair("scheduler"),
            client_ca=files.ca("ca"),
            elects_leader=elects_leader,
            extra=extra,
        ).arguments
    return KubeControllerManager(
        kubeconfig=files.kubeconfig("controller-manager"),
        bind_address=address,
        port=port,
        serving=files.pair("controller-manager"),
        client_ca=files.ca("ca"),
        signing=files.pair("ca-signing"),
        root_ca=files.ca("ca"),
        service_account_key=files.service_account_key,
        service_cidr=",".join(desired.service_cidrs),
        pod_cidr=",".join(desired.pod_cidrs) or None,
        cluster_name=desired.cluster,
        elects_leader=elects_leader,
        extra=extra,
    ).arguments


def shutdown_delay(arguments: Iterable[str]) -> float:
    """Seconds for which an API server with these arguments serves after it gets SIGTERM."""
    prefix = f"--{SHUTDOWN_DELAY}="
    delays = [flag.removeprefix(prefix) for flag in arguments if flag.startswith(prefix)]
    try:
        return sum(parse_duration(delay).total_seconds() for delay in delays)
    except ValueError:
        # An API server does not start with a delay that cannot be read.
        return 0.0
