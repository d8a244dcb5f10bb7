"""On a full disk, running processes continue. Changes follow when space is free again."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from capelin.api.core import Namespace
from capelin_control_plane.desired.control_plane import ComponentSettings
from capelin_control_plane.desired.instances import Observed

from .rig import KEY, NEW, Rig, control_plane, settled

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Rig]:
    """A backend on a disk that has room for one control plane."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ("mount", "-t", "tmpfs", "-o", "size=192m", "tmpfs", str(disk))
    await asyncio.to_thread(subprocess.run, mounting, check=True)
    try:
        rig = Rig.on(disk / "control-planes")
        yield rig
        if rig.endpoint is not None:
            await rig.backend.delete(KEY)
    finally:
        await asyncio.to_thread(subprocess.run, ("umount", str(disk)), check=True)


def fill(disk: Path) -> Path:
    """Write until the disk is full."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**20, 4096, 1):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue
    return filler


def started_since(small: Rig, before: dict[str, int]) -> set[str]:
    """Names of restarted processes, except etcd, which exits if it must write to the full disk."""
    after = small.pids()
    return {name for name in before if before[name] != after[name]} - {"etcd-0"}


async def test_a_condition_reports_a_full_disk_and_processes_continue(small: Rig) -> None:
    good = control_plane(NEW)
    await small.until(good, settled)
    before = small.pids()
    filler = fill(small.state.parent)

    flags = {"kube-scheduler": ComponentSettings(arguments={"v": "1"})}
    other = replace(good, settings={**good.settings, **flags})
    try:
        observed = await small.until(other, lambda observed: observed.blocked is not None)
        assert observed.blocked is not None
        assert observed.blocked.reason == "DiskFull"
        assert "No space left" in str(observed.blocked)
        assert small.pids() == before
        async with small.client() as client:
            await client.get(Namespace, "default")
    finally:
        filler.unlink()

    def rolled(observed: Observed) -> bool:
        return settled(observed) and small.pids()["kube-scheduler-0"] != before["kube-scheduler-0"]

    await small.until(other, rolled)
    assert started_since(small, before) == {"kube-scheduler-0"}


async def test_a_process_that_died_on_a_full_disk_restarts_when_space_is_free(small: Rig) -> None:
    good = control_plane(NEW)
    await small.until(good, settled)
    before = small.pids()
    filler = fill(small.state.parent)
    try:
        os.kill(before["kube-scheduler-0"], signal.SIGKILL)

        def away(observed: Observed) -> bool:
            return any(
                part.failure for part in observed.statuses if part.component == "kube-scheduler"
            )

        await small.until(good, away)
    finally:
        filler.unlink()
    await small.until(good, settled)
    assert started_since(small, before) == {"kube-scheduler-0"}
