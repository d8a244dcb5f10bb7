"""How a lost etcd member is replaced, step by step."""

from pathlib import Path

import pytest
from capelin_control_plane.backends.processes.etcd import (
    is_lost,
    mark_joined,
    start_refusal,
    unmark_joined,
)
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.etcd_members import (
    AddMember,
    Member,
    RemoveMember,
    is_corruption,
    next_membership_change,
)

URL = "https://127.64.0.9:2380"


def test_a_member_goes_before_it_comes_again() -> None:
    others = [Member("1", "https://127.64.0.9:2390", started=True)]
    lost = Member("9", URL, started=True)
    assert next_membership_change(URL, [*others, lost]) == RemoveMember("9")
    assert next_membership_change(URL, others) == AddMember(URL)
    assert next_membership_change(URL, [*others, Member("8", URL, started=False)]) is None


def test_a_member_is_lost_when_it_had_data_and_has_none(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path, "127.64.0.9")
    mark_joined(state_dir, 0)
    assert not is_lost(state_dir, 0), "it has never had any"
    log = state_dir.etcd_data(0) / "member" / "wal" / "0-0.wal"
    log.parent.mkdir(parents=True)
    log.touch()
    mark_joined(state_dir, 0)
    assert not is_lost(state_dir, 0)
    assert start_refusal(state_dir, 0) == ""
    log.unlink()
    assert is_lost(state_dir, 0)
    assert str(state_dir.etcd_data(0)) in start_refusal(state_dir, 0)
    unmark_joined(state_dir, 0)
    assert start_refusal(state_dir, 0) == ""


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ("exited with code 2: wal: crc mismatch", True),
        ("exited with code 1: failed to recover v3 backend from snapshot", True),
        ("exited with code 2: failed to open database: invalid database", True),
        ("ended: panic: cannot use none as id", True),
        ("exited with code 2: flag provided but not defined: -corrupt-check", False),
        ("exited with code 1: write: no space left on device", False),
        ("was killed by SIGKILL", False),
    ],
)
def test_a_failure_tells_whether_the_data_is_corrupt(failure: str, expected: bool) -> None:
    assert is_corruption(failure) == expected
