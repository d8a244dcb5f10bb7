"""Konnectivity: tunnels that nodes open to API servers which do not reach them. Pure.

A server runs beside each API server. An agent on each node connects to all of them; they learn how
many there are from the leases that servers keep in the workload cluster.
"""

import json
from typing import Literal

from capelin_control_plane.component_files import ComponentFiles
from capelin_control_plane.desired import ControlPlane

VERSION = "v0.34.0"
AGENT_PORT = 8132
HEALTH_PORT = 8134
SOCKET = "/run/konnectivity/server.sock"
SERVER_CERTIFICATE = "konnectivity-server"
SERVER_USER = "system:konnectivity-server"
"""A name that the workload cluster's roles have, too."""
EGRESS_SELECTOR_FILE = "egress-selector.json"

# Alike in the add-on `workload/konnectivity.yaml`.
_AUDIENCE = "system:konnectivity-server"
_AGENT = "konnectivity-agent"
_NAMESPACE = "kube-system"
_LEASES = "k8s-app=konnectivity-server"


def konnectivity_image(desired: ControlPlane, program: Literal["server", "agent"]) -> str:
    """The image of the server or the agent."""
    settings = desired.pods.konnectivity
    own = settings.server_image if program == "server" else settings.agent_image
    return own or f"{desired.pods.images.repository}/kas-network-proxy/proxy-{program}:{VERSION}"


def egress_selector() -> bytes:
    """The file that has an API server reach nodes, pods and services through its server."""
    connection = {
        "proxyProtocol": "GRPC",
        "transport": {"uds": {"udsName": SOCKET}},
    }
    return json.dumps(
        {
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": connection}],
        }
    ).encode()


def server_arguments(files: ComponentFiles) -> tuple[str, ...]:
    """The arguments of a server."""
    certificate = files.certificate(SERVER_CERTIFICATE)
    return (
        "--mode=grpc",
        f"--uds-name={SOCKET}",
        "--delete-existing-uds-file=true",
        "--server-port=0",
        f"--agent-port={AGENT_PORT}",
        f"--health-port={HEALTH_PORT}",
        f"--cluster-cert={certificate}",
        f"--cluster-key={certificate}",
        f"--kubeconfig={files.kubeconfig(SERVER_CERTIFICATE)}",
        f"--authentication-audience={_AUDIENCE}",
        f"--agent-namespace={_NAMESPACE}",
        f"--agent-service-account={_AGENT}",
        "--enable-lease-controller=true",
        f"--lease-namespace={_NAMESPACE}",
        f"--lease-label={_LEASES}",
        # A node is reached through its own agent, anything else through any.
        "--proxy-strategies=destHost,default",
        # By default, a connection that is gone without a word is missed after an hour.
        "--keepalive-time=30s",
    )
