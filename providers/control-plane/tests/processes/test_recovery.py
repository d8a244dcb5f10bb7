"""Recovery of etcd from the data of a surviving member or a folder."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from capelin.api.core import ConfigMap
from capelin.errors import BusyError, InvalidInputError, MissingError, UserError
from capelin.testing.waiting import until
from capelin_control_plane.backends.processes import member_data, recover
from capelin_control_plane.backends.processes.components import joining
from capelin_control_plane.backends.processes.recovery import MemberState, survivors
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.desired.instances import Instance
from capelin_embedded.processes import kill_all

from .rig import KEY, NEW, Rig, control_plane, settled
from .test_etcd import lose

CORRUPT = "failed to open database: invalid database"


def lost(index: int) -> MemberState:
    return MemberState(index, has_data=False)


def running(index: int) -> MemberState:
    return MemberState(index, has_data=True, runs=True)


def corrupt(index: int) -> MemberState:
    return MemberState(index, has_data=True, failure=CORRUPT)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ((running(0), lost(1), lost(2)), [0]),
        ((lost(0), corrupt(1), running(2)), [2]),
        ((running(0), running(1), lost(2), corrupt(3), lost(4)), [0, 1]),
        ((corrupt(0), corrupt(1), lost(2)), []),
        ((corrupt(0),), []),
    ],
)
def test_running_members_survive(members: tuple[MemberState, ...], expected: list[int]) -> None:
    assert survivors(members) == expected


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ((running(0), running(1), lost(2)), "etcd-0 and etcd-1 run with their data"),
        ((running(0), lost(1), MemberState(2, True, failure="address in use")), "etcd-2 has data"),
        ((running(0), lost(1), MemberState(2, True)), "etcd-2 has data"),
        ((running(0),), "etcd-0 run"),
    ],
)
def test_recovery_stops_if_it_would_discard_usable_data(
    members: tuple[MemberState, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        survivors(members)


def test_a_member_joins_only_the_surviving_members() -> None:
    arguments = ("etcd", "--initial-cluster=a,b,c", "--initial-cluster-state=new", "--name=etcd-1")
    member = Instance("etcd", 1, NEW, arguments)
    state_dir = StateDir(Path("/state"), "127.64.0.9")
    assert joining(member, [2], state_dir).arguments == (
        "etcd",
        "--name=etcd-1",
        "--initial-cluster=etcd-1=https://127.64.0.9:2390,etcd-2=https://127.64.0.9:2400",
        "--initial-cluster-state=existing",
    )


async def test_recovery_needs_data_on_this_machine(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no data on this machine"):
        await recover(tmp_path, KEY)


async def write_everywhere(rig: Rig, name: str) -> None:
    """Write an object and wait until every member has committed it.

    A majority is enough for a write, and a member records the commit of an entry with the next
    one. When etcd continues from a single member, it drops entries without that record.
    """
    async with rig.client() as client:
        await client.apply(ConfigMap.of(name, "default"))
        await client.apply(ConfigMap.of(f"{name}-next", "default"))
    state_dir = StateDir(rig.folder, rig.folder.name)

    async def committed(index: int) -> int:
        async with member_data.connect(state_dir, index) as api:
            return (await api.status()).raft_index

    written = max([await committed(index) for index in range(3)])

    async def is_everywhere() -> bool:
        return all([await committed(index) >= written for index in range(3)])

    await until(is_everywhere)


async def stop(rig: Rig) -> None:
    """Stop all processes, like a power loss while no provider runs."""
    await rig.backend.release(KEY)
    await kill_all(rig.folder / "run")


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_a_control_plane_recovers_from_its_single_surviving_member(rig: Rig) -> None:
    desired = replace(control_plane(NEW), etcd_replicas=3)
    await rig.until(desired, settled)
    await write_everywhere(rig, "kept")
    with pytest.raises(BusyError, match="A provider manages"):
        await recover(rig.state, KEY)
    before = rig.pids()
    await rig.backend.release(KEY)
    with pytest.raises(InvalidInputError, match="etcd has a quorum"):
        await recover(rig.state, KEY)
    assert rig.pids() == before

    await stop(rig)
    for name in ("etcd-0", "etcd-2"):
        shutil.rmtree(rig.folder / name)
    assert await recover(rig.state, KEY) == "etcd-1"

    (copy,) = rig.folder.glob("etcd-1.before-recovery-*")
    assert any(copy.glob("member/wal/*.wal"))
    await rig.until(desired, settled)
    async with rig.client() as client:
        assert await client.find(ConfigMap, "kept", "default") is not None
    # All three are members again: the cluster survives the loss of the first survivor.
    await lose(rig, "etcd-1")
    async with rig.client() as client:
        await client.apply(ConfigMap.of("more", "default"))


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_a_control_plane_without_data_recovers_from_a_folder(
    rig: Rig, tmp_path: Path
) -> None:
    desired = replace(control_plane(NEW), etcd_replicas=3)
    await rig.until(desired, settled)
    await write_everywhere(rig, "kept")
    await stop(rig)
    backup = tmp_path / "backup"
    await asyncio.to_thread(shutil.copytree, rig.folder / "etcd-2", backup)
    for name in ("etcd-0", "etcd-1"):
        shutil.rmtree(rig.folder / name)
    with pytest.raises(InvalidInputError, match="etcd-2 of the control plane can still be read"):
        await recover(rig.state, KEY, data=backup)

    await stop(rig)
    (rig.folder / "etcd-2" / "member/snap/db").write_bytes(b"nothing" * 10_000)
    with pytest.raises(MissingError, match="No etcd member of the control plane has data"):
        await recover(rig.state, KEY)
    with pytest.raises(InvalidInputError, match="is not the data directory"):
        await recover(rig.state, KEY, data=tmp_path)
    assert await recover(rig.state, KEY, data=backup) == "etcd-0"

    assert list(rig.folder.glob("etcd-2.given-up-*"))
    await rig.until(desired, settled)
    async with rig.client() as client:
        assert await client.find(ConfigMap, "kept", "default") is not None
