"""The command lines of etcd and the Kubernetes control plane, alike for processes and pods."""

from capelin.embedded.components import apiserver, controller_manager, etcd, scheduler
from capelin.embedded.components.apiserver import KubeApiServer
from capelin.embedded.components.arguments import Extra, OwnedFlagError, check_extra
from capelin.embedded.components.controller_manager import KubeControllerManager
from capelin.embedded.components.etcd import Etcd
from capelin.embedded.components.files import CertificateFiles, ClientFiles
from capelin.embedded.components.scheduler import KubeScheduler

OWNED_FLAGS = {
    "etcd": etcd.OWNED,
    "kube-apiserver": apiserver.OWNED,
    "kube-controller-manager": controller_manager.OWNED,
    "kube-scheduler": scheduler.OWNED,
}
"""By component, the flags that users cannot set."""

__all__ = [
    "OWNED_FLAGS",
    "CertificateFiles",
    "ClientFiles",
    "Etcd",
    "Extra",
    "KubeApiServer",
    "KubeControllerManager",
    "KubeScheduler",
    "OwnedFlagError",
    "check_extra",
]
