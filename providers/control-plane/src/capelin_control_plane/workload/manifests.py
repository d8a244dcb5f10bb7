"""The shapes that Kubernetes manifests share."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from capelin.api import Unstructured

BOOTSTRAPPERS = "system:bootstrappers:kubeadm:default-node-token"
NODES = "system:nodes"
_RBAC = "rbac.authorization.k8s.io"


def text(data: Mapping[str, Any]) -> str:
    """A document for a ConfigMap: YAML, the same text for the same content every time."""
    return yaml.safe_dump(dict(data), sort_keys=True, default_flow_style=False)


def config_map(name: str, namespace: str, data: Mapping[str, str]) -> Unstructured:
    """A ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": dict(data),
    }


def service_account(name: str) -> Unstructured:
    """A ServiceAccount in kube-system."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": "kube-system"},
    }


def group(name: str) -> dict[str, str]:
    """A group as the subject of a binding."""
    return {"apiGroup": _RBAC, "kind": "Group", "name": name}


def user(name: str) -> dict[str, str]:
    """A user as the subject of a binding."""
    return {"apiGroup": _RBAC, "kind": "User", "name": name}


def account(name: str) -> dict[str, str]:
    """A service account of kube-system as the subject of a binding."""
    return {"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}


def may_read_config_map(
    role: str, config_map_name: str, namespace: str, subjects: Sequence[Mapping[str, str]]
) -> list[Unstructured]:
    """A role that reads one ConfigMap, and who has it."""
    metadata = {"name": role, "namespace": namespace}
    rule: dict[str, Any] = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [config_map_name],
        "verbs": ["get"],
    }
    return [
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": dict(metadata),
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": role},
            "subjects": [dict(subject) for subject in subjects],
        },
    ]


def cluster_role(name: str, *rules: Mapping[str, Any]) -> Unstructured:
    """A ClusterRole."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [dict(rule) for rule in rules],
    }


def cluster_role_binding(name: str, role: str, subject: Mapping[str, str]) -> Unstructured:
    """A ClusterRoleBinding."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [dict(subject)],
    }
