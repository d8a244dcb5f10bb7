"""Labels, annotations and finalizers that Cluster API and its providers share.

All are explained at
https://cluster-api.sigs.k8s.io/reference/api/labels-and-annotations.
"""

import base64
import re
from typing import Final, Literal

from capelin.api import BaseObject

# Labels

CLUSTER_NAME_LABEL: Final = "cluster.x-k8s.io/cluster-name"
"""The Cluster that an object is part of. Core's caches omit secrets without it."""
CONTROL_PLANE_LABEL: Final = "cluster.x-k8s.io/control-plane"
"""Marks a Machine of a control plane. Its value is empty."""
POOL_NAME_LABEL: Final = "cluster.x-k8s.io/pool-name"
"""The MachinePool that a Machine, and the infrastructure's machine, are part of."""
PROVIDER_LABEL: Final = "cluster.x-k8s.io/provider"
"""The provider that an installed object is part of."""
WATCH_LABEL: Final = "cluster.x-k8s.io/watch-filter"
"""The manager that reconciles an object, if a provider has several."""
AGGREGATE_TO_MANAGER_LABEL: Final = "cluster.x-k8s.io/aggregate-to-manager"
"""Marks a ClusterRole for aggregation into the role of core's manager. Its value is `true`."""
CLUSTERCTL_LABEL: Final = "clusterctl.cluster.x-k8s.io"
"""Marks objects that clusterctl installed, and CRDs whose objects it moves and describes."""
MOVE_LABEL: Final = "clusterctl.cluster.x-k8s.io/move"
"""Makes clusterctl move an object that belongs to no Cluster."""

# Annotations

PAUSED_ANNOTATION: Final = "cluster.x-k8s.io/paused"
"""Makes controllers ignore an object, whatever the value."""
MANAGED_BY_ANNOTATION: Final = "cluster.x-k8s.io/managed-by"
"""Another system manages the infrastructure cluster, and providers ignore it."""
DELETE_MACHINE_ANNOTATION: Final = "cluster.x-k8s.io/delete-machine"
"""Makes core delete this Machine first when it scales down."""
BLOCK_MOVE_ANNOTATION: Final = "clusterctl.cluster.x-k8s.io/block-move"
"""Makes `clusterctl move` wait before it creates objects in the target cluster."""
DELETE_FOR_MOVE_ANNOTATION: Final = "clusterctl.cluster.x-k8s.io/delete-for-move"
"""Marks objects that are deleted because they moved. Keep the resources behind them."""

# Annotations that core puts on Nodes

NODE_CLUSTER_NAME_ANNOTATION: Final = "cluster.x-k8s.io/cluster-name"
"""The Cluster that a Node is part of."""
NODE_CLUSTER_NAMESPACE_ANNOTATION: Final = "cluster.x-k8s.io/cluster-namespace"
"""The namespace of that Cluster."""
NODE_MACHINE_ANNOTATION: Final = "cluster.x-k8s.io/machine"
"""The Machine whose Node it is."""
NODE_OWNER_KIND_ANNOTATION: Final = "cluster.x-k8s.io/owner-kind"
"""The kind of that Machine's controller, or of the MachinePool."""
NODE_OWNER_NAME_ANNOTATION: Final = "cluster.x-k8s.io/owner-name"
"""The name of that Machine's controller, or of the MachinePool."""

# Secrets and Nodes

SECRET_TYPE: Final = "cluster.x-k8s.io/secret"  # noqa: S105 - a type
"""The type of the secrets that Cluster API's providers write."""

_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_LONGEST_LABEL_VALUE = 63

ProviderType = Literal[
    "CoreProvider",
    "BootstrapProvider",
    "ControlPlaneProvider",
    "InfrastructureProvider",
    "IPAMProvider",
    "RuntimeExtensionProvider",
    "AddonProvider",
]
"""clusterctl's names for the types of providers."""

_PREFIXES: dict[ProviderType, str] = {
    "CoreProvider": "core",
    "BootstrapProvider": "bootstrap",
    "ControlPlaneProvider": "control-plane",
    "InfrastructureProvider": "infrastructure",
    "IPAMProvider": "ipam",
    "RuntimeExtensionProvider": "runtime-extension",
    "AddonProvider": "addon",
}


def label_value(name: str) -> str:
    """An object's name as the value of a label: itself where it fits, else a hash of it.

    Core computes the same, to find objects by it.
    """
    if len(name) <= _LONGEST_LABEL_VALUE and _LABEL_VALUE.fullmatch(name):
        return name
    digest = base64.urlsafe_b64encode(_fnv_32a(name.encode()).to_bytes(4, "big"))
    return f"hash_{digest.decode().rstrip('=')}_z"


def provider_label(type_: ProviderType, name: str) -> str:
    """The value of `cluster.x-k8s.io/provider` on the provider's objects."""
    return name if type_ == "CoreProvider" else f"{_PREFIXES[type_]}-{name}"


def _fnv_32a(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def pool_machine_labels(*, cluster: str, pool: str) -> dict[str, str]:
    """The labels by which core finds the infrastructure's machines of a MachinePool."""
    return {CLUSTER_NAME_LABEL: cluster, POOL_NAME_LABEL: label_value(pool)}


def is_managed_elsewhere(obj: BaseObject) -> bool:
    """Whether another system manages the object, so that its provider must not touch it."""
    return MANAGED_BY_ANNOTATION in obj.metadata.annotations
