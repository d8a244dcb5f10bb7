"""Which machines of a pool are created and deleted, and their names."""

from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.provider.pools import PoolMember, new_machine_name, next_pool_changes


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


def test_a_name_is_new_and_fits_into_a_label() -> None:
    assert new_machine_name("workers") != new_machine_name("workers")
    name = new_machine_name("p" * 53 + "-" + "p" * 30)
    assert len(name) <= 63
    assert "--" not in name
