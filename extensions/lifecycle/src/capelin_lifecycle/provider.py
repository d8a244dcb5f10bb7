"""The extension as Cluster API installs it: kinds, permissions, roles, and the ExtensionConfig."""

from importlib.metadata import version
from typing import Any, Final

from capelin.api import Unstructured
from capelin.controller import Reconciler, lease_rules
from capelin.provider import Provider

from capelin_lifecycle.actions.action import MANAGER
from capelin_lifecycle.admission import (
    approvals_policy,
    patches_policy,
    quota_labels_policy,
    references_policy,
)
from capelin_lifecycle.api.names import GROUP
from capelin_lifecycle.api.policies import ClusterLifecyclePolicy, LifecyclePolicy
from capelin_lifecycle.api.results import LifecycleReservation, LifecycleResult
from capelin_lifecycle.hooks import NAME
from capelin_lifecycle.in_place import PERMISSIONS
from capelin_lifecycle.policies.memory import CONFIG_MAP
from capelin_lifecycle.reconcilers.policies import (
    ClusterLifecyclePolicyReconciler,
    LifecyclePolicyReconciler,
)
from capelin_lifecycle.reconcilers.results import ResultReconciler

RECONCILERS: Final[list[type[Reconciler[Any]]]] = [
    ResultReconciler,
    LifecyclePolicyReconciler,
    ClusterLifecyclePolicyReconciler,
]
LABEL: Final = f"runtime-extension-{NAME}"
NAMESPACE: Final = f"{LABEL}-system"
OPTIONAL_RESOURCES: Final = {
    "jobs": frozenset({("batch", "jobs"), ("", "pods"), ("", "pods/log")}),
    "secrets": frozenset({("", "secrets")}),
    "machines": frozenset({(rule.group, name) for rule in PERMISSIONS for name in rule.resources}),
}
"""API groups and resources that only some users need, by the names of the roles."""
_RBAC: Final = "rbac.authorization.k8s.io"
_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")


def provider() -> Provider:
    """The extension, for environments that ask for it."""
    return Provider.of(
        NAME,
        "RuntimeExtensionProvider",
        version=f"v{version('capelin-lifecycle')}",
        module="capelin_lifecycle",
        reconcilers=RECONCILERS,
        kinds=[LifecycleReservation],
        manager=MANAGER,
        objects=[
            *roles(),
            memory(),
            *approvals_policy(f"{LABEL}-approvals"),
            *patches_policy(f"{LABEL}-patches"),
            *references_policy(f"{LABEL}-references"),
            *quota_labels_policy(f"{LABEL}-quota-labels"),
            extension_config(),
        ],
        on_request=True,
    )


def extension_config() -> Unstructured:
    """How Cluster API finds the extension."""
    return {
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2",
        "kind": "ExtensionConfig",
        "metadata": {"name": NAME},
        "spec": {
            "clientConfig": {
                "service": {"namespace": NAMESPACE, "name": f"{LABEL}-service", "port": 443}
            }
        },
    }


def memory() -> Unstructured:
    """The ConfigMap in which the extension stores the selectors of its policies."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": NAMESPACE},
    }


def roles() -> list[Unstructured]:
    """The roles of users, and the extension's own in its namespace.

    A policy acts on workload clusters as their administrator, and may run Jobs. Therefore the
    role `edit` cannot write policies, and `admin` can.
    """
    namespaced = [
        kind.resource.plural for kind in (LifecyclePolicy, LifecycleReservation, LifecycleResult)
    ]
    written = [LifecyclePolicy.resource.plural]
    return [
        _aggregated("view", [_rule(namespaced, _READ)], "view"),
        _aggregated(
            "policy-writer",
            [
                _rule(written, (*_READ, *_WRITE)),
                _rule([LifecycleResult.resource.plural], (*_READ, "delete")),
            ],
            "admin",
        ),
        # Bound by name: a cluster-wide policy is for all namespaces, and `admin` is for one.
        _aggregated(
            "admin",
            [_rule([ClusterLifecyclePolicy.resource.plural], (*_READ, *_WRITE))],
        ),
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": {"name": f"{LABEL}-election", "namespace": NAMESPACE},
            "rules": lease_rules(MANAGER),
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{LABEL}-election", "namespace": NAMESPACE},
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": f"{LABEL}-election"},
            "subjects": [{"kind": "ServiceAccount", "name": LABEL, "namespace": NAMESPACE}],
        },
    ]


def _rule(resources: list[str], verbs: tuple[str, ...]) -> Unstructured:
    return {"apiGroups": [GROUP], "resources": resources, "verbs": list(verbs)}


def _aggregated(name: str, rules: list[Unstructured], *into: str) -> Unstructured:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": f"{NAMESPACE}-{name}",
            "labels": {f"{_RBAC}/aggregate-to-{role}": "true" for role in into},
        },
        "rules": rules,
    }
