"""Konnectivity: tunnels that nodes open to API servers which do not reach them. Pure.

A server runs with each API server. An agent on each node connects to all of them through a
Service. They count the servers by the leases that these keep in the workload cluster.
"""

import hashlib
import json
from typing import Any, Literal

from capelin.api import Unstructured

from capelin_control_plane.backends.pods.exposure import exposed_service
from capelin_control_plane.backends.pods.names import FILES, PKI_FOLDER, Names
from capelin_control_plane.desired.component_files import ComponentFiles
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.keys.certificates import SERVER_CERTIFICATE

VERSION = "v0.34.0"
AGENT_PORT = 8132
HEALTH_PORT = 8134
SOCKET = "/run/konnectivity/server.sock"
EGRESS_SELECTOR_FILE = "egress-selector.json"

# Alike in the add-on `workload/konnectivity.yaml`.
_AUDIENCE = "system:konnectivity-server"
_AGENT = "konnectivity-agent"
_NAMESPACE = "kube-system"
_LEASES = "k8s-app=konnectivity-server"
CERTIFICATE_ANNOTATION = "controlplane.cluster.x-k8s.io/capelin-konnectivity-certificate"
_FOLDER = SOCKET.rpartition("/")[0]
_SOCKET_MOUNT = {"name": "konnectivity", "mountPath": _FOLDER}
_PKI = "konnectivity-pki"
_REQUESTS = {"cpu": "5m", "memory": "24Mi"}


def agents_service(desired: ControlPlane, names: Names) -> Unstructured:
    """The Service through which agents reach every server, whether its API server is ready or not.

    An API server that needs a webhook or an aggregated API to be ready needs its agents first.
    """
    port = {"name": "agents", "port": AGENT_PORT, "targetPort": AGENT_PORT, "protocol": "TCP"}
    service = exposed_service(desired, names, names.konnectivity, port)
    service["spec"]["publishNotReadyAddresses"] = True
    return service


def with_server(
    template: Unstructured, desired: ControlPlane, names: Names, certificate_pem: bytes
) -> Unstructured:
    """The template of API servers, with a server of konnectivity added to each pod.

    The server reads its certificate once, so a renewed certificate replaces the pods.
    """
    pod = template["spec"]
    (api_server,) = pod["containers"]
    mounts = [*api_server["volumeMounts"], _SOCKET_MOUNT]
    metadata = template["metadata"]
    digest = hashlib.sha256(certificate_pem).hexdigest()[:16]
    return {
        "metadata": {
            **metadata,
            "annotations": {**metadata["annotations"], CERTIFICATE_ANNOTATION: digest},
        },
        "spec": {
            **pod,
            "containers": [{**api_server, "volumeMounts": mounts}],
            "initContainers": [_server(desired, api_server["securityContext"])],
            "volumes": [*pod["volumes"], *_volumes(names, FILES)],
        },
    }


def _server(desired: ControlPlane, context: dict[str, Any]) -> Unstructured:
    return {
        "name": "konnectivity-server",
        # It starts before the API server, and ends after it.
        "restartPolicy": "Always",
        "image": konnectivity_image(desired, "server"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["/proxy-server"],
        "args": list(server_arguments(FILES)),
        "resources": {"requests": dict(_REQUESTS)},
        "securityContext": {**context, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": HEALTH_PORT, "scheme": "HTTP"},
            "periodSeconds": 10,
            "timeoutSeconds": 15,
            "failureThreshold": 8,
        },
        "volumeMounts": [
            {"name": _PKI, "mountPath": str(PKI_FOLDER), "readOnly": True},
            _SOCKET_MOUNT,
        ],
    }


def _volumes(names: Names, files: ComponentFiles) -> list[Unstructured]:
    paths = (
        files.ca("ca"),
        files.certificate(SERVER_CERTIFICATE),
        files.kubeconfig(SERVER_CERTIFICATE),
    )
    items = [{"key": path.name, "path": path.name} for path in paths]
    secret = {"secretName": names.pki, "defaultMode": 0o440, "items": items}
    return [{"name": _PKI, "secret": secret}, {"name": "konnectivity", "emptyDir": {}}]


def konnectivity_image(desired: ControlPlane, program: Literal["server", "agent"]) -> str:
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
        # The agent of a node forwards connections to that node, and any agent forwards others.
        "--proxy-strategies=destHost,default",
        # By default, a server notices a broken connection only after an hour.
        "--keepalive-time=30s",
    )
