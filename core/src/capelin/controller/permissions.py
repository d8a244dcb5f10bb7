"""The minimum permissions of a manager, from the declarations of its reconcilers."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from kopf import OperatorRegistry

from capelin.api import Resource, Unstructured
from capelin.controller.kopf_handlers import kopf_permissions
from capelin.controller.reconciler import For, Owns, Permission, Reconciler, Watch

_LOOK = ("get", "list", "watch")


def rbac(
    reconcilers: Iterable[Reconciler[Any] | type[Reconciler[Any]]],
    *,
    kopf: OperatorRegistry | None = None,
    permissions: Iterable[Permission] = (),
) -> list[Unstructured]:
    """The rules of a ClusterRole, or of a Role in each namespace that is served.

    Args:
        reconcilers: All reconcilers of the manager.
        kopf: Its plain kopf handlers.
        permissions: Additional permissions of these handlers.

    Raises:
        ValueError: A kopf handler does not name its kind, or a manager cannot run it.
    """
    wanted = [
        *(
            permission
            for reconciler in reconcilers
            for watch in reconciler.watches
            for permission in _implied(watch)
        ),
        *(permission for reconciler in reconcilers for permission in reconciler.permissions),
        *(() if kopf is None else kopf_permissions(kopf)),
        *permissions,
        Permission("events.k8s.io", ("events",), ("create", "patch")),
    ]
    return _rules(wanted)


def lease_rules(name: str) -> list[Unstructured]:
    """The rules of a Role in the namespace of the lease, for leader election."""
    return _rules(
        [
            # RBAC cannot restrict `create` to a name.
            Permission("coordination.k8s.io", ("leases",), ("create",)),
            Permission("coordination.k8s.io", ("leases",), ("get", "patch", "update"), (name,)),
        ]
    )


def diagnostics_rules() -> list[Unstructured]:
    """The rules of a ClusterRole for a manager that serves /metrics to users with a token."""
    return _rules(
        [
            Permission("authentication.k8s.io", ("tokenreviews",), ("create",)),
            Permission("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
        ]
    )


def _implied(watch: Watch) -> Iterable[Permission]:
    resource: Resource = watch.kind.resource
    group, plural = resource.group, resource.plural
    yield Permission(group, (plural,), _LOOK)
    match watch:
        case For(status_only=status_only):
            # Metadata and finalizers, then the status, then owner references with
            # blockOwnerDeletion if OwnerReferencesPermissionEnforcement is on.
            if not status_only:
                yield Permission(group, (plural,), ("patch",))
            yield Permission(group, (f"{plural}/status",), ("patch",))
            yield Permission(group, (f"{plural}/finalizers",), ("update",))
        case Owns(deletes=deletes):
            yield Permission(group, (plural,), ("create", "patch", *(["delete"] * deletes)))
        case _:
            pass


def _rules(wanted: Sequence[Permission]) -> list[Unstructured]:
    """Each resource once, and resources of a group with the same verbs together."""
    verbs: defaultdict[tuple[str, str, tuple[str, ...]], set[str]] = defaultdict(set)
    for permission in wanted:
        for resource in permission.resources:
            verbs[permission.group, resource, permission.names] |= set(permission.verbs)
    resources: defaultdict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]]
    resources = defaultdict(list)
    for (group, resource, names), allowed in sorted(verbs.items()):
        resources[group, names, tuple(sorted(allowed))].append(resource)
    return [
        {
            "apiGroups": [group],
            "resources": together,
            **({"resourceNames": list(names)} if names else {}),
            "verbs": list(allowed),
        }
        for (group, names, allowed), together in resources.items()
    ]
