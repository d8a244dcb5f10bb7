"""A real Kubernetes API server on this machine: etcd, kube-apiserver and a few controllers."""

from capelin.embedded.apiserver.server import CONTROLLERS, ApiServer, Place, Settings

__all__ = ["CONTROLLERS", "ApiServer", "Place", "Settings"]
