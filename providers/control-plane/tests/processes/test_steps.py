"""Steps of the processes backend: immediate changes, and changes that wait for readiness."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from capelin.controller import ObjectKey
from capelin.testing.waiting import until
from capelin_control_plane.backends.processes import ProcessesBackend, backend, supervised
from capelin_control_plane.desired.control_plane import ComponentSettings, ControlPlane
from capelin_embedded.processes import Probe, Supervisor, kill_all, marked_processes

from ..factories import with_arguments  # noqa: TID252 - a folder without a name
from .rig import KEY, Idle, Rig, Roll, all_ready_at_once, control_plane, settled

THREE_MEMBERS = replace(control_plane(), etcd_replicas=3)


def never_answers(*_: object) -> Probe:
    async def ask() -> AsyncGenerator[str, None]:
        await asyncio.sleep(1000)
        yield ""

    return ask


def with_flag(desired: ControlPlane, flag: str) -> ControlPlane:
    """The same with a flag for etcd."""
    return replace(
        desired, settings={**desired.settings, "etcd": ComponentSettings(arguments={flag: "1"})}
    )


@pytest.fixture
async def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """Three idle etcd members and the components that need them."""
    all_ready_at_once(monkeypatch)
    rig = Rig.on(tmp_path / "control-planes", Idle(tmp_path))
    await rig.until(THREE_MEMBERS, settled)
    yield rig
    await rig.backend.delete(KEY)


def etcd_pids(rig: Rig) -> set[int]:
    return {pid for name, pid in rig.pids().items() if name.startswith("etcd-")}


async def test_etcd_members_change_one_at_a_time(idle: Rig) -> None:
    before, roll = etcd_pids(idle), Roll()
    await idle.until(with_flag(THREE_MEMBERS, "shoal"), roll.is_over)
    assert roll.most_away == 1
    assert not etcd_pids(idle) & before


async def test_members_of_unknown_state_do_not_change(
    idle: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slot in range(3):
        log = idle.folder / f"etcd-{slot}" / "member" / "wal" / "0-0.wal"
        log.parent.mkdir(parents=True)
        log.touch()
    await idle.until(THREE_MEMBERS, settled)
    before = etcd_pids(idle)
    await idle.backend.release(KEY)
    monkeypatch.setattr(backend, "_SECONDS_TO_ANSWER", 0.05)
    with monkeypatch.context() as slow:
        slow.setattr(supervised, "readiness", never_answers)
        observed = await idle.until(with_flag(THREE_MEMBERS, "shoal"), lambda _: True)
        assert not any(member.current for member in observed.of("etcd"))
        await idle.backend.release(KEY)
    await idle.until(with_flag(THREE_MEMBERS, "shoal"), settled)
    assert not etcd_pids(idle) & before


async def test_the_provider_starts_processes_after_a_reboot(
    idle: Rig,
) -> None:
    before = idle.pids().keys()
    await idle.backend.release(KEY)
    await kill_all(idle.folder / "run")
    assert not idle.pids()
    await idle.backend.keep_running(KEY, idle.folder.name)
    await until(lambda: idle.pids().keys() == before)
    await idle.until(THREE_MEMBERS, settled)


async def test_a_sleeping_control_plane_does_not_delay_others(
    idle: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def find(folder: Path) -> object:
        threads.append(threading.current_thread())
        return marked_processes(folder)

    monkeypatch.setattr(supervised, "marked_processes", find)
    await idle.until(replace(THREE_MEMBERS, asleep=True), lambda observed: not observed.alive)
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(
    ("key", "address"),
    [
        (ObjectKey("elsewhere", "one"), "{address}"),
        (ObjectKey("default", "two"), "{address}"),
        (KEY, "{address}/"),
    ],
)
async def test_other_control_planes_are_ignored(idle: Rig, key: ObjectKey, address: str) -> None:
    await idle.backend.release(KEY)
    await idle.backend.keep_running(key, address.format(address=idle.folder.name))
    async with Supervisor(idle.folder / "run"):
        """The lock is free: no other supervisor holds it."""


async def test_a_provider_does_not_stop_the_processes_of_another(idle: Rig, tmp_path: Path) -> None:
    before = idle.pids()
    other = ProcessesBackend(idle.state, Idle(tmp_path), lambda _: None)
    await other.keep_running(KEY, idle.folder.name)
    await other.release(KEY)
    assert idle.pids() == before
    await idle.until(THREE_MEMBERS, settled)


async def test_a_failed_supervisor_is_replaced(idle: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    before = idle.pids()

    async def fails(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Supervisor, "_reconcile", fails)
        idle.woken.clear()
        with suppress(Exception):
            await idle.reconcile(with_arguments(THREE_MEMBERS, "kube-scheduler", {"v": "2"}))
        async with asyncio.timeout(10):
            await idle.woken.wait()
    changed = with_arguments(THREE_MEMBERS, "kube-scheduler", {"v": "3"})
    await idle.until(changed, lambda observed: settled(observed) and idle.pids() != before)
    assert idle.pids().keys() == before.keys()
