"""ClusterRoles for the kinds of a provider, aggregated to those of users and Cluster API."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from capelin.api import Unstructured
from capelin.contract import AGGREGATE_TO_MANAGER_LABEL, ProviderType

_CORE_MAY_ANYTHING_IN: Final = frozenset(
    f"{name}.cluster.x-k8s.io" for name in ("bootstrap", "controlplane", "infrastructure")
)
_AGGREGATE: Final = "rbac.authorization.k8s.io/aggregate-to-"
_READ: Final = ["get", "list", "watch"]
_WRITE: Final = ["create", "delete", "deletecollection", "patch", "update"]


def aggregated_roles(
    prefix: str, type_: ProviderType, crds: Sequence[Unstructured]
) -> list[Unstructured]:
    """The permissions of users for the kinds, and of Cluster API's core if it has none already.

    Core may do anything in the contracts' own groups.

    Args:
        prefix: The first part of the roles' names.
        type_: The type of the provider.
        crds: Its kinds.
    """
    plurals: defaultdict[str, list[str]] = defaultdict(list)
    scaled: defaultdict[str, list[str]] = defaultdict(list)
    for definition in crds:
        spec = definition["spec"]
        plurals[spec["group"]].append(spec["names"]["plural"])
        if any("scale" in version.get("subresources", {}) for version in spec["versions"]):
            scaled[spec["group"]].append(f"{spec['names']['plural']}/scale")
    if not plurals:
        return []
    operated = {group: [f"{name}/operations" for name in names] for group, names in plurals.items()}
    scaling = _rules(scaled, ["get", "patch", "update"])
    roles = [
        _role(f"{prefix}-view", [f"{_AGGREGATE}view"], _rules(plurals, _READ)),
        _role(
            f"{prefix}-edit",
            [f"{_AGGREGATE}edit", f"{_AGGREGATE}admin"],
            [*_rules(plurals, sorted([*_READ, *_WRITE])), *scaling],
        ),
        _role(f"{prefix}-operate", [f"{_AGGREGATE}admin"], _rules(operated, ["patch"])),
    ]
    foreign = {
        group: [*names, *(f"{name}/finalizers" for name in names)]
        for group, names in plurals.items()
        if group not in _CORE_MAY_ANYTHING_IN
    }
    if foreign:
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        labels = [AGGREGATE_TO_MANAGER_LABEL]
        if type_ == "InfrastructureProvider":
            labels.append(f"kubeadm.controlplane.{AGGREGATE_TO_MANAGER_LABEL}")
        roles.append(_role(f"{prefix}-core", labels, _rules(foreign, verbs)))
    return roles


def is_aggregated(obj: Unstructured) -> bool:
    """Whether a ClusterRole adds to the permissions of users."""
    labels: Mapping[str, str] = obj["metadata"].get("labels", {})
    return any(label.startswith(_AGGREGATE) for label in labels)


def _rules(resources: Mapping[str, Sequence[str]], verbs: list[str]) -> list[Unstructured]:
    return [
        {"apiGroups": [group], "resources": sorted(names), "verbs": verbs}
        for group, names in sorted(resources.items())
    ]


def _role(name: str, labels: Sequence[str], rules: Sequence[Unstructured]) -> Unstructured:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": dict.fromkeys(labels, "true")},
        "rules": list(rules),
    }
