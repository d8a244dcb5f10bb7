"""The Secret with the certificates, keys and kubeconfigs of a control plane on pods. Pure."""

from collections.abc import Mapping
from datetime import datetime

from capelin_control_plane.backends.pods.exposure import service_port
from capelin_control_plane.backends.pods.konnectivity import (
    EGRESS_SELECTOR_FILE,
    egress_selector,
)
from capelin_control_plane.backends.pods.names import API_SERVER_PORT, FILES, Names
from capelin_control_plane.desired.component_files import AUTHORITIES_PREFIX
from capelin_control_plane.desired.control_plane import Component, ControlPlane, revision
from capelin_control_plane.desired.instances import Endpoint
from capelin_control_plane.etcd.rules import MOST_MEMBERS
from capelin_control_plane.keys.certificates import SERVER_CERTIFICATE, Authorities, pki_files

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


def files_of(component: Component, desired: ControlPlane) -> tuple[str, ...]:
    """The files of the Secret that a component needs. Its pods mount no others."""
    files = _FILES_OF[component]
    if desired.authorities is not None:
        files = (*files, _marker(int(desired.authorities)))
    if component == "kube-apiserver":
        if desired.audit_policy is not None:
            files = (*files, desired.audit_policy.name)
        if desired.encryption.current is not None:
            files = (*files, desired.encryption.current.name)
        if desired.pods.konnectivity.enabled:
            files = (*files, EGRESS_SELECTOR_FILE)
    return files


def _marker(step: int) -> str:
    """A file that exists only in the Secret of this step, so that no pod starts with older CAs."""
    return f"{AUTHORITIES_PREFIX}{step}"


def pki_data(
    desired: ControlPlane,
    authorities: Authorities,
    names: Names,
    endpoint: Endpoint,
    present: Mapping[str, bytes],
) -> tuple[dict[str, bytes], datetime | None]:
    """The Secret's data with missing and due files renewed, and the time of the next renewal."""
    agents = endpoint.agents
    # Of all members that may exist: their number changes while they use one certificate.
    members = [names.member_host(index) for index in range(MOST_MEMBERS)]
    data, renew_at = pki_files(
        desired,
        authorities,
        present.get,
        host=endpoint.host,
        internal=[names.api_server_host],
        etcd=[names.etcd_host, *members],
        agents_host=agents.host if agents else None,
    )
    server = f"https://{names.api_server_host}:{service_port(desired)}"
    servers: dict[str, str] = dict.fromkeys(("controller-manager", "scheduler"), server)
    if agents is not None:
        data[EGRESS_SELECTOR_FILE] = egress_selector()
        # The API server in the same pod.
        servers[SERVER_CERTIFICATE] = f"https://127.0.0.1:{API_SERVER_PORT}"
    if desired.authorities is not None:
        step = int(desired.authorities)
        # Pods of the last step need their own file to start again.
        data |= {_marker(needed): b"" for needed in (step, revision(step - 1)) if needed > 0}
    for client, url in servers.items():
        data[f"{client}.kubeconfig"] = FILES.component_kubeconfig(client, url)
    return data, renew_at
