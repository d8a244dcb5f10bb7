"""etcd members that lose their data or are changed, in real control planes."""

import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from capelin.api.core import ConfigMap
from capelin.testing.waiting import until
from capelin_control_plane.backends import etcd_members
from capelin_control_plane.backends.processes import backend, member_data
from capelin_control_plane.backends.processes.members import ProcessMembers
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.desired.control_plane import ComponentSettings, ControlPlane
from capelin_control_plane.desired.instances import Observed, Plan
from capelin_control_plane.etcd.rules import MemberChange, Membership
from capelin_embedded.processes import Process

from tests.faults.http2 import Http2Load
from tests.support.kills import KilledError

from .rig import KEY, NEW, Rig, Roll, control_plane, settled

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def three_members() -> ControlPlane:
    return replace(control_plane(NEW), etcd_replicas=3)


async def lose(rig: Rig, name: str) -> None:
    """Delete the data of a member and kill it."""
    shutil.rmtree(rig.folder / name)
    process = Process.adopt(rig.folder / "run", name)
    assert process is not None
    process.signal(signal.SIGKILL)
    await process.wait()


def failure(observed: Observed, name: str) -> str:
    return next(part.failure for part in observed.statuses if part.name == name)


@pytest.mark.representative
async def test_a_member_without_data_is_replaced_from_the_others(rig: Rig) -> None:
    desired = three_members()
    await rig.until(desired, settled)
    async with rig.under_load() as callers:
        await lose(rig, "etcd-1")
        observed = await rig.until(
            desired, lambda observed: "lost its data" in failure(observed, "etcd-1")
        )
        assert observed.answers
        await rig.until(desired, settled)
        await callers.make_progress()
    # Requests through the killed member get no answer.
    assert len(callers.failed) <= len(callers.loads), callers.failed
    assert [failure for failure in callers.failed if ": 500 " not in failure] == []

    # The new member counts for the quorum: the cluster survives the loss of another.
    await lose(rig, "etcd-2")
    async with rig.client() as client:
        await client.apply(ConfigMap.of("kept", "default"))


async def test_a_change_of_etcd_arguments_fails_no_request(rig: Rig) -> None:
    desired = three_members()
    await rig.until(desired, settled)
    before = rig.pids()
    settings = {"etcd": ComponentSettings(arguments={"snapshot-count": "5000"})}
    roll = Roll()
    async with rig.under_load() as callers:
        await rig.until(replace(desired, settings={**desired.settings, **settings}), roll.is_over)
        await callers.make_progress()
    assert callers.failed == []
    after = rig.pids()
    assert {name for name in before if before[name] != after[name]} == {
        "etcd-0",
        "etcd-1",
        "etcd-2",
    }
    assert roll.most_away == 1


async def test_a_replacement_continues_after_the_provider_restarts(rig: Rig) -> None:
    desired = three_members()
    await rig.until(desired, settled)
    await lose(rig, "etcd-1")
    await rig.until(desired, lambda observed: "lost its data" in failure(observed, "etcd-1"))
    for _ in range(8):
        # Each step has a new provider without memory of the last one.
        await rig.backend.release(KEY)
        await rig.until(desired, lambda _: True)
    await rig.until(desired, settled)


async def test_a_lost_single_member_is_not_recreated(rig: Rig) -> None:
    desired = control_plane(NEW)
    await rig.until(desired, settled)
    data = rig.folder / "etcd-0"
    data.rename(rig.folder / "away")
    process = Process.adopt(rig.folder / "run", "etcd-0")
    assert process is not None
    process.signal(signal.SIGKILL)
    observed = await rig.until(
        desired, lambda observed: "lost its data" in failure(observed, "etcd-0")
    )
    assert f"{data} is gone" in failure(observed, "etcd-0")
    assert not data.exists()
    (rig.folder / "away").rename(data)
    await rig.until(desired, settled)


async def test_a_corrupt_member_is_renamed_and_replaced_from_the_others(rig: Rig) -> None:
    desired = three_members()
    await rig.until(desired, settled)
    process = Process.adopt(rig.folder / "run", "etcd-1")
    assert process is not None
    process.signal(signal.SIGSTOP)
    log = next((rig.folder / "etcd-1").glob("member/wal/*.wal"))
    content = bytearray(log.read_bytes())
    content[2000:40000] = b"\xff" * 38000
    log.write_bytes(content)
    process.signal(signal.SIGKILL)
    await process.wait()
    async with rig.client() as client:
        await client.apply(ConfigMap.of("kept", "default"))
    await rig.until(desired, lambda _: any(rig.folder.glob("etcd-1.corrupt-*")))
    await rig.until(desired, settled)
    (aside,) = rig.folder.glob("etcd-1.corrupt-*")
    assert (aside / "member" / "wal").is_dir(), "the corrupt data stays"


SIZES = (3, 5, 3, 1)


def members_of(rig: Rig) -> set[str]:
    return {name for name in rig.pids() if name.startswith("etcd")}


def has_processes(rig: Rig, size: int) -> bool:
    """Whether exactly these members of etcd have processes."""
    return members_of(rig) == names_of(size)


def names_of(size: int) -> set[str]:
    return {f"etcd-{index}" for index in range(size)}


def has_members(size: int) -> Callable[[Observed], bool]:
    """Whether exactly these members of etcd run, with a vote."""

    def is_resized(observed: Observed) -> bool:
        ready = {member.name for member in observed.of("etcd") if member.ready}
        voters = {member.name for member in observed.plan.voters}
        return ready == voters == names_of(size) and len(observed.of("etcd")) == size

    return is_resized


def etcd_only(size: int) -> ControlPlane:
    return replace(control_plane(NEW, replicas=0), etcd_replicas=size)


async def test_the_api_continues_while_etcd_is_resized(rig: Rig) -> None:
    desired = control_plane(NEW)
    await rig.until(desired, settled)
    async with rig.under_load(Http2Load) as callers:
        for size in SIZES:
            await rig.until(replace(desired, etcd_replicas=size), settled)
            # One that left may still end.
            await until(partial(has_processes, rig, size))
        await callers.make_progress()
    assert callers.failed == []
    async with rig.client() as client:
        stored = {item.name for item in (await client.list(ConfigMap, "default")).items}
    for load in callers.loads:
        assert load.written <= stored, "an acknowledged write is lost"


async def test_a_resize_continues_after_the_provider_is_killed_at_every_write(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write to etcd or of the plan takes effect, and nothing after it."""
    await rig.until(etcd_only(1), has_members(1))
    killed: list[str] = []
    write_plan, change_members = StateDir.write_plan, etcd_members.change_members

    def write_and_die(state_dir: StateDir, plan: Plan) -> None:
        write_plan(state_dir, plan)
        killed.append("plan")
        raise KilledError

    async def change_and_die(
        members: ProcessMembers, change: MemberChange, present: Membership
    ) -> None:
        await change_members(members, change, present)
        killed.append(type(change).__name__)
        raise KilledError

    monkeypatch.setattr(StateDir, "write_plan", write_and_die)
    monkeypatch.setattr(backend, "change_members", change_and_die)
    for size in (3, 1):
        while True:
            try:
                await rig.until(etcd_only(size), has_members(size))
                break
            except KilledError:
                await rig.backend.release(KEY)
        assert members_of(rig) == names_of(size)
    assert {"plan", "AddLearner", "Promote", "Remove"} <= {*killed}
    assert killed.count("AddLearner") == killed.count("Promote") == killed.count("Remove") == 2


async def test_an_unfinished_growth_is_undone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that was added and never started blocks later changes of etcd."""
    await rig.until(etcd_only(1), has_members(1))

    async def stop(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(ProcessMembers, "start_learner", stop)
        with pytest.raises(KilledError):
            await rig.until(etcd_only(3), has_members(3))
    await rig.backend.release(KEY)
    await rig.until(etcd_only(1), has_members(1))
    state_dir = StateDir(rig.folder, rig.folder.name)

    async def has_one_member() -> bool:
        await rig.reconcile(etcd_only(1))
        async with member_data.connect(state_dir, 0) as api:
            return len(await api.members()) == 1

    await until(has_one_member)
