"""The command lines of etcd and the Kubernetes control plane, the same for processes and pods."""

from typing import Final

from capelin_embedded.components.arguments import (
    CertificateFiles,
    ClientFiles,
    OwnedFlagError,
    check_extra,
    parse_feature_gates,
)
from capelin_embedded.components.etcd import ETCD_FLAGS, Etcd
from capelin_embedded.components.kubernetes import (
    API_SERVER_FLAGS,
    CONTROLLER_MANAGER_FLAGS,
    SCHEDULER_FLAGS,
    KubeApiServer,
    KubeControllerManager,
    KubeScheduler,
    apiserver_dns_names,
)

OWNED_FLAGS = {
    "etcd": ETCD_FLAGS,
    "kube-apiserver": API_SERVER_FLAGS,
    "kube-controller-manager": CONTROLLER_MANAGER_FLAGS,
    "kube-scheduler": SCHEDULER_FLAGS,
}
"""The flags that users cannot set, by component."""

TIMER_SLACK: Final = 0.05
"""The seconds by which the timers of an API server and of its clients may be late.

Not for etcd: its members depend on each other's heartbeats.
"""

__all__ = [
    "OWNED_FLAGS",
    "TIMER_SLACK",
    "CertificateFiles",
    "ClientFiles",
    "Etcd",
    "KubeApiServer",
    "KubeControllerManager",
    "KubeScheduler",
    "OwnedFlagError",
    "apiserver_dns_names",
    "check_extra",
    "parse_feature_gates",
]
