"""If a version is not available, everything else continues with the running binaries."""

import errno
import signal
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from capelin.testing.waiting import until
from capelin_control_plane.desired.instances import Observed
from capelin_embedded.binaries import BinariesError, Binary, Component
from capelin_embedded.processes import Process

from ..factories import with_arguments  # noqa: TID252 - a folder without a name
from .rig import KEY, OLD, Idle, Rig, all_ready_at_once, control_plane, settled

MISSING = "v1.36.99"
SCHEDULER = "kube-scheduler-0"


class WithoutOne(Idle):
    """Programs of all versions but one."""

    async def fetch(self, names: Iterable[str | Component]) -> dict[str, Binary]:
        names = list(names)
        if any(MISSING in str(name) for name in names):
            raise BinariesError(f"{MISSING} is not a version")
        return await super().fetch(names)


@pytest.fixture
async def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    all_ready_at_once(monkeypatch)
    rig = Rig.on(tmp_path / "control-planes", WithoutOne(tmp_path))
    await rig.until(control_plane(OLD), settled)
    yield rig
    await rig.backend.delete(KEY)


async def test_a_control_plane_scales_and_changes_flags_without_the_new_version(idle: Rig) -> None:
    wrong = replace(control_plane(MISSING), replicas=2)

    def is_scaled(observed: Observed) -> bool:
        assert observed.blocked is not None
        assert observed.blocked.reason == "VersionNotAvailable"
        return sum(server.ready for server in observed.of("kube-apiserver")) == 2

    observed = await idle.until(wrong, is_scaled)
    assert str(observed.blocked).startswith(f"spec.version: {MISSING} is not a version")
    assert observed.answers
    assert {server.version for server in observed.of("kube-apiserver")} == {OLD}
    assert {status.current for status in observed.statuses} == {None}
    before = idle.pids()["kube-scheduler-0"]
    tuned = with_arguments(wrong, "kube-scheduler", {"v": "2"})
    await idle.until(tuned, lambda _: idle.pids().get("kube-scheduler-0", before) != before)


async def test_the_replacement_of_a_lost_member_has_the_old_version(idle: Rig) -> None:
    observed = await idle.until(control_plane(MISSING), lambda _: True)
    assert observed.desired is not None
    assert observed.desired.etcd[0].version == OLD


async def test_a_reverted_version_restarts_no_process(idle: Rig) -> None:
    before = idle.pids()
    await idle.until(control_plane(MISSING), lambda observed: observed.blocked is not None)
    await idle.until(control_plane(OLD), settled)
    await until(lambda: idle.pids() == before)


class FullOnce(Idle):
    """Programs for which the disk has no space at first."""

    is_full = True

    async def fetch(self, names: Iterable[str | Component]) -> dict[str, Binary]:
        if self.is_full:
            self.is_full = False
            raise OSError(errno.ENOSPC, "No space left on device")
        return await super().fetch(names)


async def test_binaries_are_downloaded_again_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_ready_at_once(monkeypatch)
    rig = Rig.on(tmp_path / "control-planes", FullOnce(tmp_path))
    reasons: set[str] = set()

    def note(observed: Observed) -> bool:
        reasons.update([observed.blocked.reason] if observed.blocked else [])
        return settled(observed)

    try:
        await rig.until(control_plane(OLD), note)
    finally:
        await rig.backend.delete(KEY)
    assert reasons == {"DiskFull"}


class Pruned(Idle):
    """Programs of a cache that is pruned between two fetches."""

    def prune(self) -> None:
        self._program.unlink()

    async def fetch(self, names: Iterable[str | Component]) -> dict[str, Binary]:
        if not self._program.exists():
            self._program.write_text("#!/bin/sh\nexec sleep 1000\n")
            self._program.chmod(0o755)
        return await super().fetch(names)


async def test_pruned_binaries_are_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_ready_at_once(monkeypatch)
    programs = Pruned(tmp_path)
    rig = Rig.on(tmp_path / "control-planes", programs)
    # A scheduler that lost its race with the API server may be between two starts.
    await rig.until(
        control_plane(OLD), lambda observed: settled(observed) and SCHEDULER in rig.pids()
    )
    programs.prune()
    scheduler = Process.adopt(rig.folder / "run", SCHEDULER)
    assert scheduler is not None
    scheduler.signal(signal.SIGKILL)
    await scheduler.wait()
    try:
        await rig.until(
            control_plane(OLD),
            lambda observed: (
                settled(observed) and rig.pids().get(SCHEDULER) not in {None, scheduler.pid}
            ),
        )
    finally:
        await rig.backend.delete(KEY)
