"""The command lines of etcd and the Kubernetes control plane, alike for processes and pods."""

from typing import Final

from capelin.embedded.components import apiserver, controller_manager, etcd, scheduler
from capelin.embedded.components.apiserver import KubeApiServer, own_names
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

TIMER_SLACK: Final = 0.05
"""By how many seconds the timers of an API server, and of what watches one, may well be late.

Not etcd's: its members count on each other's heartbeats.
"""

__all__ = [
    "OWNED_FLAGS",
    "TIMER_SLACK",
    "CertificateFiles",
    "ClientFiles",
    "Etcd",
    "Extra",
    "KubeApiServer",
    "KubeControllerManager",
    "KubeScheduler",
    "OwnedFlagError",
    "check_extra",
    "own_names",
]
