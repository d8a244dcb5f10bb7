"""Konnectivity on pods: a server beside each API server, and the Service that agents use. Pure."""

import hashlib
from typing import Any

from capelin.api import Unstructured

from capelin_control_plane.backends.pods.exposure import exposed_service
from capelin_control_plane.backends.pods.names import Names
from capelin_control_plane.backends.pods.pki_secret import FILES, PKI_FOLDER
from capelin_control_plane.component_files import ComponentFiles
from capelin_control_plane.desired import ControlPlane
from capelin_control_plane.konnectivity import (
    AGENT_PORT,
    HEALTH_PORT,
    SERVER_CERTIFICATE,
    SOCKET,
    konnectivity_image,
    server_arguments,
)

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
    """The template of API servers with a server of konnectivity beside each.

    The server reads its certificate once. So another one makes other pods.
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
