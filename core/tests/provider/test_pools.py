"""Which machines of a pool are created and deleted, and their names."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.api import Object, kind
from capelin.contract import pool_machine_labels, reference_to
from capelin.provider import (
    InfraMachinePoolSpec,
    InfraMachinePoolStatus,
    InfraMachineSpec,
    InfraMachineStatus,
    is_pool_member,
    new_machine_name,
)
from capelin.provider.pools import RECOUNT_ANNOTATION, PoolMember, is_recount_due, next_pool_changes


def member(name: str, day: int = 1, **differences: Any) -> PoolMember:
    fields: dict[str, Any] = {"ready": True, "deleting": False, "has_machine": True}
    return PoolMember(name, datetime(2026, 1, day, tzinfo=UTC), **fields | differences)


@pytest.mark.parametrize(
    ("members", "replicas", "create", "delete"),
    [
        ([], 2, 2, []),
        ([member("a")], 1, 0, []),
        ([member("a", deleting=True)], 1, 1, []),
        ([member("new", 2), member("old", 1)], 1, 0, ["old"]),
        ([member("old", 1), member("new", 2, ready=False)], 1, 0, ["new"]),
        ([member("a", ready=False), member("b", delete_first=True)], 1, 0, ["b"]),
        ([member("a", has_machine=False), member("b", 2)], 0, 0, ["b"]),
    ],
)
def test_next_changes(
    members: list[PoolMember], replicas: int, create: int, delete: list[str]
) -> None:
    assert next_pool_changes(members, replicas) == (create, delete)


@pytest.mark.parametrize("pool", ["p", "p" * 63, "p" * 53 + "-.-more", "p" * 200])
def test_a_name_is_new_and_fits_into_a_label(pool: str) -> None:
    name = new_machine_name(pool)
    assert len(name) <= 63
    assert re.fullmatch("p+-[0-9a-f]{8}", name)
    assert name != new_machine_name(pool)


@kind(group="infrastructure.cluster.x-k8s.io", version="v1")
class Pool(Object[InfraMachinePoolSpec, InfraMachinePoolStatus]):
    """A pool."""


@kind(group="infrastructure.cluster.x-k8s.io", version="v1")
class Item(Object[InfraMachineSpec, InfraMachineStatus]):
    """A machine of a pool."""


@pytest.mark.parametrize("kept", ["owner", "labels", "provider ID", "nothing"])
def test_member_of_a_pool_may_have_lost_its_owner_or_its_labels(kept: str) -> None:
    pool = Pool.read(
        {
            "metadata": {
                "name": "workers",
                "uid": "1",
                "labels": {"cluster.x-k8s.io/cluster-name": "demo"},
                "ownerReferences": [
                    {
                        "apiVersion": "cluster.x-k8s.io/v1beta2",
                        "kind": "MachinePool",
                        "name": "of-workers",
                        "uid": "2",
                    }
                ],
            },
            "spec": {"providerIDList": ["item:///1"]},
        }
    )
    machine = Item.of("a", "team", spec=InfraMachineSpec())
    match kept:
        case "owner":
            machine.metadata.owner_references = [reference_to(pool)]
        case "labels":
            machine.metadata.labels = pool_machine_labels(cluster="demo", pool="of-workers")
        case "provider ID":
            machine.spec.provider_id = "item:///1"
        case _:
            machine.metadata.labels = pool_machine_labels(cluster="demo", pool="others")
    assert is_pool_member(machine, pool) is (kept != "nothing")


@pytest.mark.parametrize(
    ("requested", "machines", "is_due"),
    [
        (None, 1, True),
        ("2026-01-01T00:00:57+00:00", 3, True),
        ("2026-01-01T00:00:59+00:00", 3, False),
        ("2026-01-01T00:00:50+00:00", 1000, False),
        ("2026-01-01T00:00:45+00:00", 10_000, True),
        ("2026-01-01T00:02:00+00:00", 1, True),
        ("2026-01-01T00:00:50", 1, True),
        ("yesterday", 1, True),
    ],
)
def test_core_has_time_to_count(requested: str | None, machines: int, *, is_due: bool) -> None:
    pool = Pool.of("workers", "team", spec=InfraMachinePoolSpec())
    if requested is not None:
        pool.metadata.annotations[RECOUNT_ANNOTATION] = requested
    assert is_recount_due(pool, machines, datetime(2026, 1, 1, 0, 1, tzinfo=UTC)) is is_due
