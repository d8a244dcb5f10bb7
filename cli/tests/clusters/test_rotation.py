"""The rotation of CAs as the command requests it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from capelin.contract import ConditionSpec, update_conditions
from capelin_cli.clusters.operations import Drop, condition_of, is_in_progress
from capelin_control_plane.api import CapelinControlPlane, Spec, Status
from capelin_control_plane.operations.rotation import DROP_ANNOTATION, ROTATING, requested_drop

from ..command import capelin  # noqa: TID252 - a folder without a name

NOW = datetime(2026, 3, 29, 12, 0, tzinfo=UTC)


def control_plane(*conditions: ConditionSpec) -> CapelinControlPlane:
    mine = CapelinControlPlane.of("demo", "default", spec=Spec(version="v1.34.4"))
    mine.status = Status(conditions=update_conditions([], conditions, now=NOW, generation=1))
    return mine


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("True", "TrustingAuthorities", True),
        ("True", "WaitingForClients", True),
        ("False", "RotationPostponed", False),
        ("False", "RotationRefused", False),
    ],
)
def test_a_rotation_in_progress_is_not_requested_again(
    status: Literal["True", "False"], reason: str, expected: bool
) -> None:
    mine = control_plane(ConditionSpec(ROTATING, status, reason, "text"))
    assert is_in_progress(condition_of(mine, ROTATING)) is expected


def test_without_a_condition_no_rotation_is_in_progress() -> None:
    assert not is_in_progress(condition_of(control_plane(), ROTATING))


@pytest.mark.parametrize("force", [False, True])
def test_the_provider_understands_the_confirmation(force: bool) -> None:
    mine = control_plane()
    mine.metadata.annotations[DROP_ANNOTATION] = Drop(force).annotation(NOW)
    assert requested_drop(mine) == (NOW, force)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["rotate", "demo"], 2, "Type capelin rotate cluster demo."),
        (["rotate", "cluster", "demo"], 4, "Environment default does not exist"),
        (["rotate", "cluster", "demo", "--drop"], 2, "Add --yes"),
        (["rotate", "cluster", "demo", "--force"], 2, "rotate cluster demo --drop --force"),
        (["rotate", "cluster", "demo", "--drop", "--yes"], 4, "Environment default does not"),
    ],
)
def test_invalid_options_of_rotate(
    arguments: list[str], code: int, text: str, tmp_path: Path
) -> None:
    ended = capelin(*arguments, home=tmp_path)
    assert text in ended.stderr
    assert ended.returncode == code
