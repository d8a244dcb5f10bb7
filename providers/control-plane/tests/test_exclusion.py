"""Which operation waits for which: the table is total, and nothing waits in a circle."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from capelin_control_plane.desired.component_files import EncryptionFiles
from capelin_control_plane.desired.instances import InstanceStatus, Observed, Phase
from capelin_control_plane.operations.engine import (
    RULES,
    Operation,
    Rule,
    in_progress,
    obstacle,
    read_table,
    waiting_text,
)

from .factories import desired_control_plane

SERVER = InstanceStatus(
    name="kube-apiserver-0", component="kube-apiserver", version="v1.34.4", ready=True, current=True
)
SERVES = Observed(statuses=(SERVER,), complete=True, voters=1)
NOTHING = set[Operation]()
PERSONS = {Operation.SLEEP, Operation.MOVE, Operation.PAUSE, Operation.DELETION}
"""They end by a request of a person, and may hold everything else."""


def test_each_operation_joins_itself_and_has_a_rule_for_each_other() -> None:
    assert RULES.keys() == {(row, column) for row in Operation for column in Operation}
    assert {one for one in Operation if RULES[one, one] is not Rule.JOINS} == set()


def test_a_table_without_an_operation_is_rejected() -> None:
    with pytest.raises(ValueError, match="a row and a column"):
        read_table("ROTATION\nROTATION +")


def test_of_any_operations_in_progress_one_continues() -> None:
    others = [operation for operation in Operation if operation not in PERSONS]
    for size in range(1, len(others) + 1):
        for running in combinations(others, size):
            if {Operation.ROTATION, Operation.CLIENTS} <= set(running):
                continue  # A rotation has one stage.
            assert any(obstacle(operation, running) is None for operation in running), running


def test_a_restore_waits_for_nothing_but_a_person() -> None:
    waits = {row for row in Operation if RULES[row, Operation.RESTORE] is Rule.WAITS}
    assert waits == {Operation.PAUSE, Operation.DELETION}


def test_of_two_that_wait_for_each_other_the_rotation_continues() -> None:
    both = {Operation.ROTATION, Operation.ENCRYPTION}
    assert obstacle(Operation.ROTATION, both) is None
    assert obstacle(Operation.ENCRYPTION, both) is Operation.ROTATION
    # One that has not begun waits.
    assert obstacle(Operation.ROTATION, {Operation.ENCRYPTION}) is Operation.ENCRYPTION
    assert waiting_text(Operation.RESTORE) == "the end of a restore"


@pytest.mark.parametrize(
    ("changes", "observed", "running"),
    [
        ({}, SERVES, NOTHING),
        ({"rotation": 2}, SERVES, {Operation.ROTATION}),
        ({"rotation": 3}, SERVES, {Operation.CLIENTS}),
        ({"encryption": EncryptionFiles(changing=True)}, SERVES, {Operation.ENCRYPTION}),
        ({"replicas": 2}, SERVES, {Operation.ROLLOUT}),
        ({}, replace(SERVES, statuses=(replace(SERVER, current=False),)), {Operation.ROLLOUT}),
        ({}, replace(SERVES, stopping=frozenset({"kube-apiserver-1"})), {Operation.ROLLOUT}),
        ({}, replace(SERVES, voters=3), {Operation.MEMBERS}),
        ({}, replace(SERVES, complete=False), {Operation.MEMBERS}),
        ({"restore": "x"}, SERVES, {Operation.RESTORE}),
        ({}, replace(SERVES, restore=Phase.REPLACING), {Operation.RESTORE}),
        ({"asleep": True}, Observed(), {Operation.SLEEP}),
    ],
)
def test_the_state_shows_the_operations_in_progress(
    changes: dict[str, Any], observed: Observed, running: set[Operation]
) -> None:
    desired = replace(desired_control_plane("v1.34.4"), **changes)
    assert in_progress(desired, observed) == running
    assert in_progress(desired, observed, is_moving=True) == running | {Operation.MOVE}
