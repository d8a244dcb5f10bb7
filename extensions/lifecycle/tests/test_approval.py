"""Approvals and maintenance windows."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin_lifecycle.actions.approval import approval_problems, approval_verdict, next_opening
from capelin_lifecycle.api.actions import Approval, Window
from capelin_lifecycle.policies.verdict import Verdict

from .factories import known, occurrence

SATURDAY = datetime(2026, 11, 28, 21, tzinfo=UTC)
WINDOW = {"schedule": "0 22 * * SAT", "timeZone": "Europe/Berlin", "duration": "2h"}


RESULT_ID = "0123abcdef"
KEY = "approval.runtime.capelin.cluster.x-k8s.io/freeze"


def outcome(
    approval: dict[str, Any], now: datetime, value: str | None = None, result_id: str = RESULT_ID
) -> Verdict:
    return approval_verdict(
        Approval.read(approval),
        "freeze",
        occurrence(),
        result_id,
        {} if value is None else {KEY: value},
        since=SATURDAY - timedelta(hours=1),
        now=now,
    )


def test_an_approver_approves_by_code_and_name() -> None:
    approval = {"approvers": ["alice", "bob"]}
    waiting = outcome(approval, SATURDAY)
    assert waiting.phase == "Waiting"
    assert waiting.message == (
        "waits for approval by alice or bob. To approve: kubectl annotate cluster demo -n team"
        f" --overwrite {KEY}=0123abcd:USER"
    )
    assert waiting.retry_seconds == 5
    assert "mallory may not approve" in outcome(approval, SATURDAY, "0123abcd:mallory").message
    assert outcome(approval, SATURDAY, "0123abcd:bob").phase == "Done"


def test_the_command_names_the_only_approver() -> None:
    message = outcome({"approvers": ["oidc:alice o'hara"]}, SATURDAY).message
    assert message.endswith(f"""{KEY}='0123abcd:oidc:alice o'"'"'hara'""")
    assert outcome({"approvers": ["oidc:alice"]}, SATURDAY, "0123abcd:oidc:alice").phase == "Done"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("deadbeef:alice", "since the approval with code deadbeef was for another occurrence"),
        ("alice", "since the annotation's value is not CODE:USER"),
        ("0123ABCD:alice", "since the annotation's value is not CODE:USER"),
        (":alice", "since the annotation's value is not CODE:USER"),
        ("", "since the annotation's value is not CODE:USER"),
    ],
)
def test_an_approval_with_another_code_or_name_is_rejected(value: str, reason: str) -> None:
    """An annotation of an earlier upgrade, hook or policy of the same name stays on the Cluster."""
    rejected = outcome({"approvers": ["alice"]}, SATURDAY, value)
    assert rejected.phase == "Waiting"
    assert reason in rejected.message
    assert rejected.message.endswith(f"--overwrite {KEY}=0123abcd:alice")


def test_an_approval_without_a_result_has_no_effect() -> None:
    for value in (":alice", "0123abcd:alice"):
        found = outcome({"approvers": ["alice"]}, SATURDAY, value, result_id="")
        assert found.phase == "Waiting"
        assert "kubectl" not in found.message


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


def test_an_approval_needs_both_a_person_and_a_window() -> None:
    approval = {"approvers": ["alice"], "window": WINDOW}
    closed = outcome(approval, SATURDAY - timedelta(hours=1), "0123abcd:alice")
    assert closed.message == "waits for the maintenance window (0 22 * * SAT, Europe/Berlin)"
    assert outcome(approval, SATURDAY).phase == "Waiting"
    assert outcome(approval, SATURDAY, "0123abcd:alice").phase == "Done"


def test_an_approval_fails_when_it_expires_before_its_window() -> None:
    approval = {"window": {**WINDOW, "duration": "30m"}, "expiry": "2h"}
    missed = outcome(approval, SATURDAY + timedelta(hours=1))
    assert missed.phase == "Failed"
    assert missed.message == (
        "expired without the maintenance window (0 22 * * SAT, Europe/Berlin)"
    )
    # A window that is open when the approval expires still counts.
    assert outcome({**approval, "window": WINDOW}, SATURDAY + timedelta(hours=1)).phase == "Done"


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        ({"schedule": "0 25 * * *"}, "not a cron expression"),
        ({"schedule": "0 0 31 2 *"}, "not a cron expression"),
        ({"timeZone": "Europe/Atlantis"}, "'Europe/Atlantis' is not a time zone"),
        ({"timeZone": "Europe"}, "'Europe' is not a time zone"),
        ({"duration": "0s"}, "must be at most 7 days"),
        ({"duration": "169h"}, "must be at most 7 days"),
    ],
)
def test_an_invalid_window_is_reported(window: dict[str, str], problem: str) -> None:
    policy = known(action={"approval": {"window": {**WINDOW, **window}}})
    (found,) = approval_problems(policy)
    assert problem in found
    assert not approval_problems(known(action={"approval": {"window": WINDOW}}))


def test_a_policy_has_a_name_that_fits_an_annotation() -> None:
    (problem,) = approval_problems(known("x" * 64))
    assert "63 characters" in problem
