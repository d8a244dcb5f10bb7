"""The Secret with the certificates, keys and kubeconfigs of a control plane on pods. Pure."""

from collections.abc import Mapping
from datetime import datetime

from capelin.pki import KeyPair

from capelin_control_plane.backends.pods.exposure import service_port
from capelin_control_plane.backends.pods.konnectivity import (
    EGRESS_SELECTOR_FILE,
    egress_selector,
)
from capelin_control_plane.backends.pods.names import API_SERVER_PORT, FILES, Names
from capelin_control_plane.certificates import (
    SERVER_CERTIFICATE,
    Authorities,
    desired_certificates,
    next_renewal,
    renewed,
)
from capelin_control_plane.desired import Component, ControlPlane
from capelin_control_plane.instances import Endpoint

_FILES_OF: Mapping[Component, tuple[str, ...]] = {
    "etcd": ("etcd.pem", "etcd-ca.crt"),
    "kube-apiserver": (
        "apiserver.pem",
        "apiserver-etcd-client.pem",
        "apiserver-kubelet-client.pem",
        "ca-ca.crt",
        "etcd-ca.crt",
        "front-proxy-client.pem",
        "proxy-ca.crt",
        "service-account.key",
        "service-account.pub",
    ),
    "kube-controller-manager": (
        "ca-ca.crt",
        "ca-signing.pem",
        "controller-manager.kubeconfig",
        "controller-manager.pem",
        "service-account.key",
    ),
    "kube-scheduler": ("ca-ca.crt", "scheduler.kubeconfig", "scheduler.pem"),
}
_BEGIN = b"-----BEGIN "


def files_of(component: Component, desired: ControlPlane) -> tuple[str, ...]:
    """The files of the Secret that a component needs. It is given no others."""
    files = _FILES_OF[component]
    if component == "kube-apiserver":
        if desired.audit_policy is not None:
            files = (*files, desired.audit_policy.name)
        if desired.pods.konnectivity.enabled:
            files = (*files, EGRESS_SELECTOR_FILE)
    return files


def pki_data(
    desired: ControlPlane,
    authorities: Authorities,
    names: Names,
    endpoint: Endpoint,
    present: Mapping[str, bytes],
) -> tuple[dict[str, bytes], datetime | None]:
    """The data of the Secret, with what is missing or due renewed; and when the next is due."""
    keys = authorities.service_account
    data = {
        **{f"{name}-ca.crt": authorities.of(name).certificate_pem for name in _AUTHORITIES},
        "ca-signing.pem": _joined(authorities.ca),
        "service-account.key": keys.private_key_pem,
        "service-account.pub": keys.public_key_pem,
    }
    if desired.audit_policy is not None:
        data[desired.audit_policy.name] = desired.audit_policy.content
    server = f"https://{names.api_server_host}:{service_port(desired)}"
    for client in ("controller-manager", "scheduler"):
        kubeconfig = FILES.component_kubeconfig(client, server)
        data[f"{client}.kubeconfig"] = kubeconfig
    agents = endpoint.agents
    if agents is not None:
        data[EGRESS_SELECTOR_FILE] = egress_selector()
        # The API server that it runs beside.
        kubeconfig = FILES.component_kubeconfig(
            SERVER_CERTIFICATE, f"https://127.0.0.1:{API_SERVER_PORT}"
        )
        data[f"{SERVER_CERTIFICATE}.kubeconfig"] = kubeconfig
    pairs: list[KeyPair] = []
    members = [names.member_host(index) for index in range(desired.etcd_replicas)]
    for certificate in desired_certificates(
        desired,
        endpoint.host,
        internal=[names.api_server_host],
        etcd=[names.etcd_host, *members],
        agents_host=agents.host if agents else None,
    ):
        file = f"{certificate.name}.pem"
        found = key_pair(present.get(file))
        authority = authorities.of(certificate.authority)
        pair = renewed(desired, certificate, authority, found, desired.now) or found
        if pair is not None:
            data[file] = _joined(pair)
            pairs.append(pair)
    return data, next_renewal(desired, pairs)


def key_pair(content: bytes | None) -> KeyPair | None:
    """A certificate and its key, from the file that holds both."""
    key = (content or b"").rfind(_BEGIN)
    return KeyPair(content[:key], content[key:]) if content and key > 0 else None


_AUTHORITIES = ("ca", "etcd", "proxy")


def _joined(pair: KeyPair) -> bytes:
    return pair.certificate_pem + pair.private_key_pem
