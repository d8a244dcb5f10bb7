"""Approvals and maintenance windows."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin_lifecycle.actions.action import Outcome
from capelin_lifecycle.actions.approval import (
    ApprovalRunner,
    approval_annotation,
    approval_outcome,
)
from capelin_lifecycle.api import Approval, Window
from capelin_lifecycle.schedule import next_opening

from .factories import known

SATURDAY = datetime(2026, 11, 28, 21, tzinfo=UTC)
WINDOW = {"schedule": "0 22 * * SAT", "timeZone": "Europe/Berlin", "duration": "2h"}


def outcome(approval: dict[str, Any], now: datetime, **annotations: str) -> Outcome:
    named = {approval_annotation(name.replace("_", "-")): by for name, by in annotations.items()}
    since = SATURDAY - timedelta(hours=1)
    return approval_outcome(Approval.read(approval), "freeze", named, since=since, now=now)


def test_an_approver_approves_by_name() -> None:
    approval = {"approvers": ["alice", "bob"]}
    waiting = outcome(approval, SATURDAY)
    assert waiting.phase == "Waiting"
    assert waiting.message == (
        "waits for approval by alice or bob"
        " (annotation approval.runtime.capelin.cluster.x-k8s.io/freeze)"
    )
    assert waiting.retry_seconds == 5
    assert outcome(approval, SATURDAY, other="alice").phase == "Waiting"
    assert "mallory may not approve" in outcome(approval, SATURDAY, freeze="mallory").message
    assert outcome(approval, SATURDAY, freeze="bob").phase == "Done"


@pytest.mark.parametrize(
    ("minutes", "phase"), [(-1, "Waiting"), (0, "Done"), (119, "Done"), (120, "Waiting")]
)
def test_a_window_is_open_in_its_time_zone(minutes: int, phase: str) -> None:
    # 22:00 in Berlin is 21:00 UTC in winter.
    moment = SATURDAY + timedelta(minutes=minutes)
    assert outcome({"window": WINDOW}, moment).phase == phase


def test_a_window_opens_at_the_same_local_time_in_summer() -> None:
    opening = next_opening(Window.read(WINDOW), datetime(2026, 7, 4, 12, tzinfo=UTC))
    assert opening is not None
    assert opening.start == datetime(2026, 7, 4, 20, tzinfo=UTC)


def test_a_person_and_a_window_are_both_needed() -> None:
    approval = {"approvers": ["alice"], "window": WINDOW}
    closed = outcome(approval, SATURDAY - timedelta(hours=1), freeze="alice")
    assert closed.message == "waits for the maintenance window (0 22 * * SAT, Europe/Berlin)"
    assert outcome(approval, SATURDAY).phase == "Waiting"
    assert outcome(approval, SATURDAY, freeze="alice").phase == "Done"


def test_a_window_that_is_missed_is_a_failure() -> None:
    approval = {"window": {**WINDOW, "duration": "30m"}, "expiry": "2h"}
    missed = outcome(approval, SATURDAY + timedelta(hours=1))
    assert missed.phase == "Failed"
    assert missed.message == (
        "expired without the maintenance window (0 22 * * SAT, Europe/Berlin)"
    )
    # In its last moments, what is there counts.
    assert outcome({**approval, "window": WINDOW}, SATURDAY + timedelta(hours=1)).phase == "Done"


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        ({"schedule": "0 25 * * *"}, "no cron expression"),
        ({"schedule": "0 0 31 2 *"}, "no cron expression"),
        ({"timeZone": "Europe/Atlantis"}, "no time zone is called 'Europe/Atlantis'"),
        ({"duration": "0s"}, "at most a week"),
        ({"duration": "169h"}, "at most a week"),
    ],
)
def test_a_window_that_cannot_be_read_is_named(window: dict[str, str], problem: str) -> None:
    policy = known(action={"approval": {"window": {**WINDOW, **window}}})
    (found,) = ApprovalRunner().problems(policy)
    assert problem in found
    assert not ApprovalRunner().problems(known(action={"approval": {"window": WINDOW}}))


def test_a_policy_has_a_name_that_fits_an_annotation() -> None:
    (problem,) = ApprovalRunner().problems(known("x" * 64))
    assert "63 characters" in problem
