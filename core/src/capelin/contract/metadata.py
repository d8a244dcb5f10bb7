"""Labels and annotations: which travel where, and what they ask of a controller.

Rules `control-plane/metadata`, `control-plane/node-metadata`, `infra-machine-pool/machines`,
`infra-cluster/managed-elsewhere`, `*/several-managers`.
"""

from collections.abc import Mapping

from capelin.api import BaseObject
from capelin.contract.labels import (
    CLUSTER_NAME_LABEL,
    CONTROL_PLANE_LABEL,
    CONTROL_PLANE_NAME_LABEL,
    MANAGED_BY_ANNOTATION,
    MANAGED_NODE_DOMAIN,
    NODE_RESTRICTION_LABEL_DOMAIN,
    NODE_ROLE_LABEL_DOMAIN,
    POOL_NAME_LABEL,
    WATCH_LABEL,
)
from capelin.contract.names import label_value


def control_plane_machine_labels(
    template: Mapping[str, str], *, cluster: str, control_plane: str
) -> dict[str, str]:
    """The labels of a control plane's Machine, its infrastructure and its bootstrap config.

    Args:
        template: `spec.machineTemplate.metadata.labels`, which may change at any time: they are
            changed in place, and never a reason to make a machine anew.
        cluster: The Cluster's name.
        control_plane: The control plane's name.
    """
    return {
        **template,
        CLUSTER_NAME_LABEL: cluster,
        CONTROL_PLANE_LABEL: "",
        CONTROL_PLANE_NAME_LABEL: label_value(control_plane),
    }


def pool_machine_labels(*, cluster: str, pool: str) -> dict[str, str]:
    """The labels by which core finds the infrastructure's machines of a MachinePool."""
    return {CLUSTER_NAME_LABEL: cluster, POOL_NAME_LABEL: label_value(pool)}


def labels_for_node(machine: Mapping[str, str]) -> dict[str, str]:
    """Those of a Machine's labels that core puts on its Node."""
    return {
        name: value
        for name, value in machine.items()
        if _domain(name) == NODE_ROLE_LABEL_DOMAIN
        or _is_within(_domain(name), NODE_RESTRICTION_LABEL_DOMAIN)
        or _is_within(_domain(name), MANAGED_NODE_DOMAIN)
    }


def annotations_for_node(machine: Mapping[str, str]) -> dict[str, str]:
    """Those of a Machine's annotations that core puts on its Node."""
    return {
        name: value
        for name, value in machine.items()
        if _is_within(_domain(name), MANAGED_NODE_DOMAIN)
    }


def is_watched(obj: BaseObject, watch_filter: str) -> bool:
    """Whether a manager with this `--watch-filter` looks after the object; none is after all."""
    return not watch_filter or obj.metadata.labels.get(WATCH_LABEL) == watch_filter


def is_managed_elsewhere(obj: BaseObject) -> bool:
    """Whether somebody else keeps the object: its provider is not to touch it."""
    return MANAGED_BY_ANNOTATION in obj.metadata.annotations


def _domain(name: str) -> str:
    return name.partition("/")[0]


def _is_within(domain: str, parent: str) -> bool:
    return domain == parent or domain.endswith(f".{parent}")
