"""Changes after which a plan is computed again."""

import os
from pathlib import Path
from typing import Any

import pytest
from capelin_cli.plan.watching import is_change, stamps_of

from .objects import cluster, machine, made, snapshot

MACHINE = machine("a")
INFRASTRUCTURE = made("FooMachine", "a", {"cpus": 2}, group="infrastructure")
KNOWN = snapshot(MACHINE, INFRASTRUCTURE)


def changed(obj: Any, **fields: Any) -> Any:
    return {**obj, **fields}


@pytest.mark.parametrize(
    ("obj", "deleted", "expected"),
    [
        (MACHINE, False, False),
        (MACHINE, True, True),
        (changed(MACHINE, status={"phase": "Running"}), False, True),
        (changed(MACHINE, metadata={**MACHINE["metadata"], "resourceVersion": "7"}), False, False),
        (changed(INFRASTRUCTURE, status={"ready": True}), False, False),
        (changed(INFRASTRUCTURE, spec={"cpus": 4}), False, True),
        (machine("new"), False, True),
        (machine("new"), True, False),
        (made("Machine", "other", labels={"cluster.x-k8s.io/cluster-name": "dev"}), False, False),
        (changed(cluster(), spec={"paused": True}), False, True),
    ],
)
def test_changes_of_objects(obj: Any, *, deleted: bool, expected: bool) -> None:
    assert is_change(KNOWN, obj, deleted=deleted) is expected


def test_changes_of_files(tmp_path: Path) -> None:
    file = tmp_path / "class.yaml"
    assert stamps_of([file]) == [None]
    file.write_text("a")
    before = stamps_of([file])
    assert before == stamps_of([file])
    file.write_text("ab")
    assert before != stamps_of([file])
    after = stamps_of([file])
    os.utime(file, (1, 1))
    assert after != stamps_of([file])
