from types import new_class
from typing import Any, cast

import pytest
from capelin.api import Object, kind
from capelin.api.core import ConfigMap, Node, Secret
from capelin.controller import (
    Context,
    Done,
    For,
    Owns,
    Permission,
    Reconciler,
    Result,
    Watches,
    lease_rules,
    rbac,
)


@kind(group="example.io", version="v1")
class Reef(Object[dict[str, Any], dict[str, Any]]):
    """A kind."""


class Reefs(Reconciler[Reef]):
    watches = (
        For(Reef),
        Owns(Secret),
        Owns(ConfigMap, deletes=True),
        Watches(Node, lambda _: ()),
    )
    permissions = (
        Permission("", ("pods",), ("get", "list")),
        Permission("", ("pods/eviction",), ("create",)),
        Permission("", ("nodes",), ("patch",)),
        Permission("", ("configmaps",), ("get",), names=("cluster-info",)),
    )

    async def reconcile(self, __: Context, _: Reef, /) -> Result:
        return Done()


def test_rules_contain_only_what_the_declarations_need() -> None:
    assert rbac([Reefs()]) == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "verbs": ["create", "delete", "get", "list", "patch", "watch"],
        },
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["cluster-info"],
            "verbs": ["get"],
        },
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch", "watch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "verbs": ["create", "get", "list", "patch", "watch"],
        },
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
        {
            "apiGroups": ["example.io"],
            "resources": ["reefs"],
            "verbs": ["get", "list", "patch", "watch"],
        },
        {"apiGroups": ["example.io"], "resources": ["reefs/finalizers"], "verbs": ["update"]},
        {"apiGroups": ["example.io"], "resources": ["reefs/status"], "verbs": ["patch"]},
    ]


def test_two_reconcilers_of_the_same_kinds_share_rules() -> None:
    assert rbac([Reefs(), Reefs()]) == rbac([Reefs()])


def test_a_status_only_kind_has_no_patch_permission() -> None:
    reefs = type("Watched", (Reefs,), {"watches": (For(Reef, status_only=True),)})
    allowed = {
        (resource, verb)
        for rule in rbac([reefs])
        if rule["apiGroups"] == ["example.io"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert ("reefs", "patch") not in allowed
    assert {("reefs", "get"), ("reefs/status", "patch")} <= allowed


def test_leader_election_has_permissions_for_one_lease() -> None:
    assert lease_rules("capelin-reef") == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["capelin-reef"],
            "verbs": ["get", "patch", "update"],
        },
    ]


@pytest.mark.parametrize("watches", [(Owns(Secret),), (For(Reef), For(Reef))])
def test_a_reconciler_has_exactly_one_kind(watches: Any) -> None:
    with pytest.raises(TypeError, match=r"Reefless\.watches has to name its own kind"):
        type("Reefless", (Reefs,), {"watches": watches})


def test_a_reconciler_has_the_name_of_its_kind() -> None:
    assert Reefs().name == "reef"


class Unkind:
    """A class without `@kind`."""


@kind(group="example.io", version="v1")
class Lagoon(Object[dict[str, Any], dict[str, Any]]):
    """Another kind."""


async def nothing(*_: Any) -> Result:
    return Done()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"watches": (For(Lagoon),)}, r"Wrong reconciles Reef, but its watches have For\(Lagoon\)"),
        ({}, r"Wrong has no watches: add watches = \(For\(Reef\),\)"),
        ({"watches": For(Reef)}, r"Wrong\.watches is not a tuple"),
        ({"watches": (For(Reef), Reef)}, r"it takes only For, Owns and Watches"),
        ({"watches": (For(Reef), Owns(cast("Any", Unkind)))}, r"which is not a kind: add @kind"),
    ],
)
def test_invalid_declaration_is_rejected(body: dict[str, Any], message: str) -> None:
    def fill(namespace: dict[str, Any]) -> None:
        namespace.update({"reconcile": nothing, **body})

    with pytest.raises(TypeError, match=message):
        new_class("Wrong", (Reconciler[Reef],), exec_body=fill)
