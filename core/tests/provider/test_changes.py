"""Events for changes of conditions."""

from datetime import UTC, datetime
from typing import Literal

import pytest
from capelin.api import Condition
from capelin.contract import AVAILABLE
from capelin.provider import Change
from capelin.provider.changes import changes, transitions

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def condition(
    type_: str, status: Literal["True", "False", "Unknown"], reason: str = "", message: str = ""
) -> Condition:
    return Condition(
        type=type_,
        status=status,
        reason=reason or type_,
        message=message,
        last_transition_time=NOW,
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, condition(AVAILABLE, "False", "Starting"), []),
        (
            condition(AVAILABLE, "False", "Starting"),
            condition(AVAILABLE, "True"),
            [Change("Normal", "Available", "it is as it should be")],
        ),
        (condition(AVAILABLE, "True"), condition(AVAILABLE, "True"), []),
        (
            condition(AVAILABLE, "True"),
            condition(AVAILABLE, "False", "EtcdQuorumLost", "1 of 3 members\n answer"),
            [Change("Warning", "EtcdQuorumLost", "1 of 3 members answer")],
        ),
        (
            condition("RollingOut", "False", "NotRollingOut"),
            condition("RollingOut", "True", message="to be replaced: etcd-0"),
            [Change("Normal", "RollingOut", "to be replaced: etcd-0")],
        ),
        (
            condition("RollingOut", "False", "NotRollingOut"),
            condition("RollingOut", "True", "VersionNotAvailable", "v9.9.9 is not known"),
            [Change("Warning", "VersionNotAvailable", "v9.9.9 is not known")],
        ),
        (
            condition("RollingOut", "True"),
            condition("RollingOut", "False", "NotRollingOut"),
            [Change("Normal", "RolledOut", "it is done")],
        ),
        (
            None,
            condition("Remediating", "True", message="kube-apiserver-0 was killed by SIGKILL"),
            [Change("Warning", "Remediating", "kube-apiserver-0 was killed by SIGKILL")],
        ),
        (
            None,
            condition("Deleting", "True", message="stopping and deleting it"),
            [Change("Normal", "Deleting", "stopping and deleting it")],
        ),
        (condition("Deleting", "True"), condition("Deleting", "False", "NotDeleting"), []),
        (None, condition("EtcdClusterHealthy", "True"), []),
    ],
)
def test_important_changes_of_a_condition_become_an_event(
    before: Condition | None, after: Condition, expected: list[Change]
) -> None:
    known = {} if before is None else {before.type: before}
    assert changes(known, [after], AVAILABLE) == expected


def test_transitions_contain_new_and_changed_conditions() -> None:
    before = {
        entry.type: entry
        for entry in (
            condition("Ready", "False", "NoPower", "box 1"),
            condition("DiskReady", "True"),
            condition("Paused", "True"),
        )
    }
    after = [
        condition("Ready", "False", "NoPower", "box 2"),
        condition("DiskReady", "False", "Full", "no free\n space"),
        condition("Paused", "False", "NotPaused"),
        condition("Fast", "True"),
        condition("Deleting", "False", "NotDeleting"),
    ]
    assert transitions(before, after) == [
        "DiskReady is False (Full): no free space",
        "Paused is False (NotPaused)",
        "Fast is True (Fast)",
    ]
