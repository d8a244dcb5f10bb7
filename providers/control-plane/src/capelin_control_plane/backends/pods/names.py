"""Names, labels, ports and files of the objects of a control plane. Pure."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

from capelin.contract import CLUSTER_NAME_LABEL
from capelin.controller import ObjectKey

from capelin_control_plane.desired.component_files import ComponentFiles
from capelin_control_plane.desired.control_plane import Component

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "capelin-control-plane"
COMPONENT_LABEL = "app.kubernetes.io/component"
INSTANCE_LABEL = "app.kubernetes.io/instance"
VERSION_LABEL = "app.kubernetes.io/version"
OWNER_ANNOTATION = "controlplane.cluster.x-k8s.io/capelin-control-plane"
"""The name of the control plane, which may be longer than the value of a label."""
DIGEST_ANNOTATION = "controlplane.cluster.x-k8s.io/capelin-template"
"""On pods, the digest of their template."""
RESTORED_ANNOTATION = "controlplane.cluster.x-k8s.io/capelin-restored"
"""On the StatefulSet of etcd, the restore whose data its members use."""

API_SERVER_PORT = 6443
ETCD_CLIENT_PORT = 2379
ETCD_PEER_PORT = 2380
ETCD_METRICS_PORT = 2381

PKI_FOLDER = PurePosixPath("/etc/kubernetes/pki")
FILES = ComponentFiles(PKI_FOLDER, PKI_FOLDER)

# A StatefulSet's name stands in a label of its pods with a hash of 11 characters.
_LONGEST = 32
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def value_at(node: Any, *path: str) -> Any:
    """The value at a path, if any."""
    for part in path:
        if not isinstance(node, dict):
            return None
        node = cast("dict[str, Any]", node).get(part)
    return node


def fields_at(node: Any, *path: str) -> Mapping[str, Any]:
    """The object at a path, or an empty one."""
    found = value_at(node, *path)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def items_at(node: Any, *path: str) -> list[Mapping[str, Any]]:
    """The objects in the list at a path, or an empty list."""
    found = value_at(node, *path)
    return cast("list[Mapping[str, Any]]", found) if isinstance(found, list) else []


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a control plane's objects."""

    namespace: str
    control_plane: str

    @classmethod
    def of(cls, key: ObjectKey) -> "Names":
        return cls(key.namespace, key.name)

    @property
    def base(self) -> str:
        """The prefix of all names: the control plane's own name if a Service can have it."""
        name = self.control_plane
        if len(name) <= _LONGEST and _DNS_LABEL.fullmatch(name):
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        kept = re.sub(r"[^a-z0-9]", "-", name)[: _LONGEST - 12].strip("-")
        return f"cp-{kept}-{digest}"

    def of_component(self, component: Component) -> str:
        """The name of a component's Deployment or StatefulSet, Service and policies."""
        return f"{self.base}-{component}"

    @property
    def etcd_members(self) -> str:
        """The headless Service that names each member of etcd."""
        return f"{self.base}-etcd-members"

    @property
    def pki(self) -> str:
        """The Secret with certificates, keys and kubeconfigs."""
        return f"{self.base}-control-plane-pki"

    @property
    def konnectivity(self) -> str:
        """The Service through which agents of konnectivity reach the servers."""
        return f"{self.base}-konnectivity-server"

    @property
    def etcd_state(self) -> str:
        """The ConfigMap that stores whether etcd's cluster has formed."""
        return f"{self.base}-etcd-state"

    @property
    def api_server_host(self) -> str:
        """The name of the API servers inside the management cluster."""
        return f"{self.of_component('kube-apiserver')}.{self.namespace}.svc"

    @property
    def etcd_host(self) -> str:
        """The name of etcd inside the management cluster."""
        return f"{self.of_component('etcd')}.{self.namespace}.svc"

    def member(self, index: int | str) -> str:
        """The pod of an etcd member, which is also its name in etcd's cluster."""
        return f"{self.of_component('etcd')}-{index}"

    def claim(self, index: int) -> str:
        """The claim of the volume of an etcd member."""
        return f"data-{self.member(index)}"

    def member_host(self, index: int) -> str:
        """The name of an etcd member inside the management cluster."""
        return f"{self.member(index)}.{self.etcd_members}.{self.namespace}.svc"

    def labels(self, component: Component | None = None) -> dict[str, str]:
        """Labels that select the objects of a control plane, or the pods of a component."""
        labels = {MANAGED_BY_LABEL: MANAGED_BY, INSTANCE_LABEL: self.base}
        return labels | ({COMPONENT_LABEL: component} if component else {})

    def all_labels(self, cluster: str, component: Component | None = None) -> dict[str, str]:
        return {**self.labels(component), CLUSTER_NAME_LABEL: cluster}


def owner_of(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    if labels.get(MANAGED_BY_LABEL) != MANAGED_BY:
        return None
    return annotations.get(OWNER_ANNOTATION)
