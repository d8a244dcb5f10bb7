"""A resize of etcd with a simulated etcd, by providers that are killed after random writes."""

import shutil
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
from capelin.testing.waiting import until
from capelin_control_plane.backends.processes import member_data, supervised
from capelin_control_plane.backends.processes.components import etcd_peer_url
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Observed
from capelin_control_plane.etcd import api as etcd_api
from capelin_control_plane.etcd.api import MembershipError, MemberStatus
from capelin_control_plane.etcd.rules import ListedMember, quorum
from capelin_embedded.processes import Process

from tests.support.kills import KilledError, killed_after_each_write

from .rig import KEY, Idle, Rig, all_ready_at_once, control_plane

SIZES = (3, 5, 3, 1, 3)


class IdleMembers(Idle):
    """Programs that only create the data of an etcd member."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "idle").write_text(
            "#!/bin/sh\n"
            'for flag; do case "$flag" in --data-dir=*)\n'
            '  mkdir -p "${flag#*=}/member/wal" && : > "${flag#*=}/member/wal/0-0.wal";;\n'
            "esac; done\n"
            "exec sleep 1000\n"
        )


@dataclass
class SimulatedEtcd:
    """The API of an etcd cluster, and of each of its members."""

    rig: Rig
    random: Random
    kills: float
    """How probable it is that a provider is killed after a write."""
    listed: dict[int, ListedMember] = field(default_factory=dict[int, ListedMember])
    leader: int = 0
    added: int = 0
    killed: list[str] = field(default_factory=list[str])

    @property
    def state_dir(self) -> StateDir:
        return StateDir(self.rig.folder, self.rig.folder.name)

    @property
    def voters(self) -> set[int]:
        return {index for index, member in self.listed.items() if not member.learner}

    @property
    def running(self) -> set[int]:
        """The members that run with data."""
        return {
            index
            for index in self.listed
            if f"etcd-{index}" in self.rig.pids() and member_data.has_data(self.state_dir, index)
        }

    def wrote(self, name: str) -> None:
        """Check the cluster after a write, and possibly kill the provider."""
        self.check()
        if self.random.random() < self.kills:
            self.killed.append(name)
            raise KilledError

    def check(self) -> None:
        started = {index for index in self.voters if self.listed[index].started}
        assert len(self.voters) - len(started) <= 1
        assert len(started & self.running) >= quorum(len(self.voters))
        assert self.leader in self.voters & self.running, "nothing leads"
        assert len(self.listed) - len(self.voters) <= 1

    def index_of(self, id_: str) -> int:
        return next(index for index, member in self.listed.items() if member.id == id_)

    @asynccontextmanager
    async def connect(self, *_: object) -> "AsyncGenerator[SimulatedEtcd]":
        yield self

    async def members(self) -> list[ListedMember]:
        for index in self.running:
            self.listed[index] = replace(self.listed[index], started=True)
        return list(self.listed.values())

    async def status(self) -> MemberStatus:
        return MemberStatus(1, has_leader=True, leader=self.listed[self.leader].id)

    async def add_member(self, peer_url: str, *, learner: bool = False) -> None:
        index = next(
            index for index in range(5) if etcd_peer_url(self.state_dir, index) == peer_url
        )
        assert index not in self.listed
        self.added += 1
        self.listed[index] = ListedMember(f"{self.added:x}", peer_url, False, learner)
        self.wrote("add")

    async def add_learner(self, peer_url: str) -> None:
        await self.add_member(peer_url, learner=True)

    async def promote_member(self, id_: str) -> None:
        index = self.index_of(id_)
        if index not in self.running:
            raise MembershipError("the learner is not in sync")
        self.listed[index] = replace(self.listed[index], learner=False, started=True)
        self.wrote("promote")

    async def remove_member(self, id_: str) -> None:
        index = self.index_of(id_)
        del self.listed[index]
        if self.leader == index:
            self.leader = min(self.voters & self.running)
        self.wrote("remove")

    async def move_leadership(self, to: str) -> None:
        self.leader = self.index_of(to)
        self.wrote("leader")


@pytest.fixture(params=range(2))
async def etcd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[SimulatedEtcd]:
    """A control plane without members yet. The parameter is the seed."""
    all_ready_at_once(monkeypatch)
    monkeypatch.setattr(supervised, "liveness", no_liveness)
    rig = Rig.on(tmp_path / "control-planes", IdleMembers(tmp_path))
    etcd = SimulatedEtcd(rig, Random(request.param), kills=0)  # noqa: S311
    monkeypatch.setattr(etcd_api, "connect", etcd.connect)
    for owner, name in (
        (StateDir, "write_plan"),
        (member_data, "unmark_joined"),
        (member_data, "clear_data"),
        (member_data, "set_aside"),
    ):
        monkeypatch.setattr(owner, name, killing(etcd, getattr(owner, name), name))
    yield etcd
    etcd.kills = 0
    await rig.backend.delete(KEY)


def no_liveness(*_: object) -> None:
    """Idle members do not answer."""


def killing(etcd: SimulatedEtcd, write: Callable[..., object], name: str) -> Callable[..., object]:
    """The same write, after which the provider may be killed."""

    def write_and_die(*arguments: object, **options: object) -> object:
        before = stored(etcd.state_dir)
        result = write(*arguments, **options)
        if etcd.kills and stored(etcd.state_dir) != before:
            etcd.wrote(name)
        return result

    return write_and_die


def stored(state_dir: StateDir) -> tuple[set[Path], bytes]:
    """Everything that writes can change."""
    plan = state_dir.plan.read_bytes() if state_dir.plan.exists() else b""
    return {*state_dir.path.glob("etcd-*")}, plan


def of_size(size: int) -> ControlPlane:
    return replace(control_plane(replicas=0), etcd_replicas=size)


async def start(etcd: SimulatedEtcd, size: int) -> None:
    """Start a cluster whose members have joined."""
    await etcd.rig.allocate(of_size(size))
    for index in range(size):
        url = etcd_peer_url(etcd.state_dir, index)
        etcd.listed[index] = ListedMember(f"first-{index}", url, started=True)

    async def has_joined() -> bool:
        await etcd.rig.reconcile(of_size(size))
        return len(member_data.joined_members(etcd.state_dir)) == size

    await until(has_joined)


async def resize(etcd: SimulatedEtcd, size: int) -> None:
    """Reconcile until the cluster has the size. A killed provider is followed by another one."""

    def is_resized(observed: Observed) -> bool:
        etcd.check()
        wanted = set(range(size))
        voters = {member.index for member in observed.plan.voters}
        return etcd.voters == voters == wanted == {*etcd.listed} == etcd.running

    async def live() -> None:
        try:
            await etcd.rig.until(of_size(size), is_resized)
        except KilledError:
            await etcd.rig.backend.release(KEY)
            raise

    await killed_after_each_write(live)


async def test_killed_providers_resize_with_a_quorum(etcd: SimulatedEtcd) -> None:
    await start(etcd, 1)
    etcd.kills = 0.5
    for size in SIZES:
        await resize(etcd, size)


@pytest.mark.parametrize("etcd", [0], indirect=True)
async def test_a_provider_killed_after_every_write_resizes_with_a_quorum(
    etcd: SimulatedEtcd,
) -> None:
    await start(etcd, 1)
    etcd.kills = 1
    for size in SIZES:
        await resize(etcd, size)
    assert {"write_plan", "unmark_joined", "set_aside", "add", "promote", "remove"} <= {
        *etcd.killed
    }


async def test_a_member_that_loses_its_data_is_replaced_during_a_resize(
    etcd: SimulatedEtcd,
) -> None:
    await start(etcd, 3)
    etcd.kills = 0.2
    for size in (5, 3):
        with suppress(KilledError):
            for _ in range(etcd.random.randrange(1, 6)):
                await etcd.rig.reconcile(of_size(size))
        await lose(etcd, etcd.random.choice(sorted(etcd.voters & etcd.running)))
        await etcd.rig.backend.release(KEY)
        await resize(etcd, size)


async def lose(etcd: SimulatedEtcd, index: int) -> None:
    """Delete the data of a member, and kill it. Another one leads."""
    shutil.rmtree(etcd.state_dir.etcd_data(index))
    process = Process.adopt(etcd.rig.folder / "run", f"etcd-{index}")
    assert process is not None
    process.signal(signal.SIGKILL)
    await process.wait()
    if etcd.leader == index:
        etcd.leader = min(etcd.voters & etcd.running)
