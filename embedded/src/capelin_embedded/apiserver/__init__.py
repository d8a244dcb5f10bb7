"""A real Kubernetes API server on this machine: etcd, kube-apiserver and a few controllers."""

from capelin_embedded.apiserver.keys import KeyFiles
from capelin_embedded.apiserver.server import (
    CONTROLLERS,
    ETCD,
    KUBE_APISERVER,
    KUBE_CONTROLLER_MANAGER,
    ApiServer,
    Settings,
)

__all__ = [
    "CONTROLLERS",
    "ETCD",
    "KUBE_APISERVER",
    "KUBE_CONTROLLER_MANAGER",
    "ApiServer",
    "KeyFiles",
    "Settings",
]
