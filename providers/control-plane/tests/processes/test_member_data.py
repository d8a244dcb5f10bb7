"""Detection of lost data of etcd members on processes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from capelin_control_plane.backends.processes.member_data import (
    clear_data,
    mark_joined,
    member_loss,
    start_refusal,
    unmark_joined,
)
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.etcd.rules import Loss

CORRUPT = "exited with code 2: wal: crc mismatch"


def test_a_loss_needs_a_joined_member_with_data(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path, "127.64.0.9")
    mark_joined(state_dir, 0)
    assert member_loss(state_dir, 0, CORRUPT) is None, "it has never had any"
    log = state_dir.etcd_data(0) / "member" / "wal" / "0-0.wal"
    log.parent.mkdir(parents=True)
    log.touch()
    mark_joined(state_dir, 0)
    assert member_loss(state_dir, 0, "") is None
    assert member_loss(state_dir, 0, CORRUPT) is Loss.UNUSABLE
    assert start_refusal(state_dir, 0) == ""
    log.unlink()
    assert member_loss(state_dir, 0, CORRUPT) is Loss.GONE
    assert str(state_dir.etcd_data(0)) in start_refusal(state_dir, 0)
    unmark_joined(state_dir, 0)
    assert start_refusal(state_dir, 0) == ""


def test_only_the_last_data_of_a_removed_member_stays(tmp_path: Path) -> None:
    state_dir, now = StateDir(tmp_path, "127.64.0.9"), datetime.now(UTC)
    for attempt in range(3):
        log = state_dir.etcd_data(0) / "member" / "wal" / "0-0.wal"
        log.parent.mkdir(parents=True)
        log.write_text(str(attempt))
        clear_data(state_dir, 0, now + timedelta(seconds=attempt))
    assert [log.read_text() for log in tmp_path.glob("*/member/wal/*")] == ["2"]
    # Without a log, only an unfinished copy can exist.
    state_dir.etcd_data(0).mkdir()
    clear_data(state_dir, 0, now)
    assert not state_dir.etcd_data(0).exists()
