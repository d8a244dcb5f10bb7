"""Files of the backend after a power loss during a write."""

import json
import os
from pathlib import Path

import pytest
from capelin.provider import Blocked
from capelin_control_plane.backends.processes.state_dir import StateDir

from .rig import KEY, Idle, Rig, control_plane


@pytest.fixture
def idle(tmp_path: Path) -> Rig:
    return Rig.on(tmp_path / "control-planes", Idle(tmp_path))


async def test_files_are_synced_before_rename(idle: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: set[str] = set()

    def is_on_disk(descriptor: int) -> None:
        kept.add(Path(f"/proc/self/fd/{descriptor}").readlink().name.split(".")[1])

    monkeypatch.setattr(os, "fsync", is_on_disk)
    await idle.until(control_plane(), lambda _: True)
    await idle.backend.delete(KEY)
    assert kept == {"owner", "plan"}


async def test_a_truncated_plan_is_written_again(idle: Rig) -> None:
    await idle.until(control_plane(), lambda _: True)
    plan = idle.folder / "plan.json"
    before = plan.read_bytes()
    await idle.backend.release(KEY)
    for broken in (b"", before[:-10], b"\0" * len(before)):
        plan.write_bytes(broken)
        await idle.until(control_plane(), lambda _: True)
        assert json.loads(plan.read_bytes()) != []
        await idle.backend.release(KEY)
    await idle.backend.delete(KEY)


async def test_unreadable_plan_is_ignored(idle: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise OSError("the disk is away")

    with monkeypatch.context() as away:
        away.setattr(StateDir, "read_plan", fails)
        with pytest.raises(Blocked, match="the disk is away"):
            await idle.until(control_plane(), lambda _: True)
    observed = await idle.until(control_plane(), lambda _: True)
    assert observed.blocked is None
    await idle.backend.delete(KEY)
