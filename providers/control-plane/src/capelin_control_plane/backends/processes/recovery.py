"""Recovers a control plane's etcd from one member after the permanent loss of the others.

The member's data becomes a cluster of one, which the others join without data of their own. Writes
that reached only the others are lost, so recovery refuses if it could save more. It moves or copies
replaced data aside, and deletes none.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from capelin.controller import ObjectKey
from capelin.errors import BusyError, InvalidInputError, MissingError, UserError
from capelin_embedded.processes import (
    AlreadySupervisedError,
    Phase,
    ProcessSpec,
    Supervisor,
)

from capelin_control_plane.backends.processes import member_data
from capelin_control_plane.backends.processes.components import (
    command_of,
    etcd_metrics_port,
    etcd_peer_url,
    joining,
)
from capelin_control_plane.backends.processes.instance_status import readiness
from capelin_control_plane.backends.processes.state_dir import StateDir, state_dirs_of
from capelin_control_plane.desired.instances import Instance
from capelin_control_plane.etcd.api import MembershipError
from capelin_control_plane.etcd.rules import is_corruption, quorum

_TRIAL_SECONDS = 30.0
"""For members that may still find a quorum: as long as they may take on a busy machine."""
_READY_SECONDS = 120.0
_RETRY_SECONDS = 1.0

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member after an attempt to start all members."""

    index: int
    has_data: bool
    runs: bool = False
    """Whether it runs with its data. Without a leader it serves no requests."""
    failure: str = ""
    """Why it ended, if it does."""

    @property
    def name(self) -> str:
        """The name of its process."""
        return f"etcd-{self.index}"


def survivors(members: Sequence[MemberState]) -> list[int]:
    """The members from one of which the cluster can continue. None: no data can be read.

    Raises:
        UserError: to give up all members but one would lose data needlessly.
    """
    for member in members:
        if member.has_data and not member.runs and not is_corruption(member.failure):
            raise UserError(
                f"{member.name} has data and does not run: it may have more than the others.",
                reason=member.failure or "It neither answered nor ended in time.",
                hint="Fix that first, or move its data away if it is worth nothing.",
            )
    running = [member for member in members if member.runs]
    if len(running) >= quorum(len(members)):
        names = " and ".join(member.name for member in running)
        raise UserError(
            f"{names} run with their data, which is a quorum: a recovery would only lose data.",
            reason="They find no leader, so the connections between them are broken.",
            hint="Look at their logs for certificates, addresses and election timeouts.",
        )
    return [member.index for member in running]


async def recover(
    state: Path, key: ObjectKey, *, data: Path | None = None, report: Report = lambda _: None
) -> str:
    """Recover the etcd of a control plane that no provider manages now.

    Args:
        state: The folder with the state directories of the provider.
        key: The control plane.
        data: The data directory of a member, such as a copy, to continue from if no member of the
            control plane has any left.
        report: Called with each step.

    Returns:
        The name of the member from whose data the cluster continues.

    Raises:
        UserError: it changed nothing, because it could save more data, or none.
        capelin_embedded.processes.NotReadyError: a recovered member does not become ready.
    """
    state_dirs = state_dirs_of(state, key)
    if len(state_dirs) != 1:
        raise MissingError(
            f"The control plane {key} has no data on this machine.",
            reason=f"{state} has {len(state_dirs)} folders of it.",
            hint="Recover it where its provider runs.",
        )
    recovery = _Recovery(state_dirs[0], report)
    try:
        async with Supervisor(recovery.state_dir.run) as supervisor:
            return await recovery.run(supervisor, data)
    except AlreadySupervisedError as error:
        raise BusyError(
            f"A provider manages the control plane {key}.",
            reason="It must not start members that are being replaced.",
            hint="Pause the control plane, and try again.",
        ) from error


@dataclass
class _Recovery:
    state_dir: StateDir
    report: Report

    async def run(self, supervisor: Supervisor, data: Path | None) -> str:
        # A learner can have less data, and cannot continue alone.
        planned = self.state_dir.read_plan().voters
        if not planned:
            raise MissingError(
                "The control plane has never had an etcd.",
                reason=f"{self.state_dir.plan} names no member.",
                hint="There is nothing to recover.",
            )
        # Before anything is stopped: the API servers may serve.
        survivor = await self._ready_member(planned)
        if survivor is None:
            self.report("starting the etcd members that have data")
            members = await self._try_all(supervisor, planned)
            survivor = await self._ready_member(planned)
            survivor = survivor or await self._go_on(supervisor, planned, members, data)
        await self._have_others_join(supervisor, planned, survivor)
        # As planned: the provider finds nothing to change.
        supervisor.declare(*map(self._spec, planned))
        await supervisor.ready(_READY_SECONDS)
        return survivor.name

    async def _ready_member(self, planned: Sequence[Instance]) -> Instance | None:
        """A ready member of the incomplete cluster that an interrupted recovery left, if any.

        Raises:
            InvalidInputError: the cluster is complete and has a quorum.
        """
        for member in planned:
            try:
                async with member_data.connect(self.state_dir, member.index) as api:
                    if not (await api.status()).has_leader:
                        continue
                    listed = await api.members()
            except (OSError, MembershipError):
                continue
            if len(listed) < len(planned):
                return member
            raise InvalidInputError(
                f"etcd has a quorum: {member.name} is ready.",
                reason="The provider itself replaces lost members, without any loss of data.",
                hint="Look at the control plane's conditions for the problem.",
            )
        return None

    async def _try_all(
        self, supervisor: Supervisor, planned: Sequence[Instance]
    ) -> list[MemberState]:
        """Start all members that have data, and observe the result."""
        present = [each for each in planned if member_data.has_data(self.state_dir, each.index)]
        supervisor.declare(*map(self._spec, present))
        may_find_quorum = len(present) >= quorum(len(planned))
        with suppress(TimeoutError):
            async with asyncio.timeout(_TRIAL_SECONDS):
                async for states in supervisor.changes():
                    phases = {member.name: states[member.name].phase for member in present}
                    if Phase.RUNNING in phases.values():
                        break
                    starting = [each for each in present if phases[each.name] is not Phase.FAILED]
                    if not starting:
                        break
                    # Too few: once they run, there is nothing more to wait for.
                    if not may_find_quorum and await self._all_run(supervisor, starting):
                        break
        return [await self._state(supervisor, member, present) for member in planned]

    async def _all_run(self, supervisor: Supervisor, members: Sequence[Instance]) -> bool:
        states = [await self._state(supervisor, member, members) for member in members]
        return all(state.runs for state in states)

    async def _state(
        self, supervisor: Supervisor, member: Instance, present: Sequence[Instance]
    ) -> MemberState:
        if member not in present:
            return MemberState(member.index, has_data=False)
        url = f"http://{self.state_dir.address}:{etcd_metrics_port(member.index)}/health"
        try:
            # Its API does not serve before it has a leader.
            async with aiohttp.ClientSession() as session, session.get(url):
                runs = True
        except (TimeoutError, aiohttp.ClientError):
            runs = False
        failure = supervisor.states[member.name].reason
        return MemberState(member.index, has_data=True, runs=runs, failure=failure)

    async def _go_on(
        self,
        supervisor: Supervisor,
        planned: Sequence[Instance],
        members: Sequence[MemberState],
        data: Path | None,
    ) -> Instance:
        indexes = survivors(members)
        if bool(indexes) == (data is not None):
            raise _no_data(self.state_dir) if data is None else _own_data(indexes[0])
        candidates = [member for member in planned if member.index in indexes]
        if data is not None and not any((data / "member" / "wal").glob("*.wal")):
            raise InvalidInputError(
                f"{data} is not the data directory of an etcd member.",
                reason="It has no member/wal with a log in it.",
                hint="Name a folder such as etcd-0, or a copy of one.",
            )
        await supervisor.stop()
        survivor = await self._longest_history(supervisor, candidates or planned[:1])
        self.report(f"setting all other data aside, and continuing from {data or survivor.name}")
        await asyncio.to_thread(self._set_aside, planned, survivor, data)
        self.report(f"starting {survivor.name} as the only member")
        supervisor.declare(self._spec(_alone(survivor)))
        await supervisor.ready(_READY_SECONDS)
        supervisor.declare(self._spec(survivor))
        await supervisor.ready(_READY_SECONDS)
        await self._correct_address(survivor)
        return survivor

    async def _longest_history(
        self, supervisor: Supervisor, candidates: Sequence[Instance]
    ) -> Instance:
        """The survivor with the longest log. Each one runs as the only member, on a copy."""
        if len(candidates) == 1:
            return candidates[0]
        histories: dict[str, int] = {}
        for member in candidates:
            self.report(f"reading how far the history of {member.name} goes")
            data = self.state_dir.etcd_data(member.index)
            copy = data.with_name(f"{data.name}.trial")
            await asyncio.to_thread(shutil.rmtree, copy, ignore_errors=True)
            await asyncio.to_thread(shutil.copytree, data, copy)
            supervisor.declare(self._spec(_alone(member, copy)))
            await supervisor.ready(_READY_SECONDS)
            async with member_data.connect(self.state_dir, member.index) as api:
                histories[member.name] = (await api.status()).raft_index
            await supervisor.stop()
            await asyncio.to_thread(shutil.rmtree, copy)
        return max(candidates, key=lambda member: histories[member.name])

    def _set_aside(
        self, planned: Sequence[Instance], survivor: Instance, data: Path | None
    ) -> None:
        # The members stay marked as joined: after an interruption, no provider starts them empty.
        # Copy first: this is the last data, and the disk may be full.
        now = datetime.now(UTC)
        kept = self.state_dir.etcd_data(survivor.index)
        source = data or kept
        copy = kept.with_name(f"{kept.name}.before-recovery-{now:%Y%m%dT%H%M%SZ}")
        shutil.copytree(source, copy)
        for member in planned:
            own = self.state_dir.etcd_data(member.index)
            if own.exists() and (member != survivor or data is not None):
                member_data.set_aside(self.state_dir, member.index, now, why="given-up")
        if data is not None:
            copy.rename(kept)

    async def _correct_address(self, survivor: Instance) -> None:
        """Data of another member, or of another address, contains that member's peer URL."""
        peer_url = etcd_peer_url(self.state_dir, survivor.index)
        async with member_data.connect(self.state_dir, survivor.index) as api:
            (member,) = await api.members()
            if member.peer_url != peer_url:
                await api.move_member(member.id, peer_url)

    async def _have_others_join(
        self, supervisor: Supervisor, planned: Sequence[Instance], survivor: Instance
    ) -> None:
        present = [survivor]
        for member in planned:
            if member == survivor:
                continue
            self.report(f"{member.name} joins, and copies the data of {survivor.name}")
            await self._expect(member, through=survivor)
            joins = joining(member, [other.index for other in present], self.state_dir)
            supervisor.declare(*map(self._spec, (*present, joins)))
            await supervisor.ready(_READY_SECONDS)
            present.append(joins)

    async def _expect(self, member: Instance, *, through: Instance) -> None:
        """Add a member to the cluster. etcd refuses until all others were healthy for a while."""
        peer_url = etcd_peer_url(self.state_dir, member.index)
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            try:
                async with member_data.connect(self.state_dir, through.index) as api:
                    if all(present.peer_url != peer_url for present in await api.members()):
                        await api.add_member(peer_url)
                    return
            except MembershipError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"{member.name} cannot join: {error}",
                        hint="Run the same command again: it continues from here.",
                    ) from error
            await asyncio.sleep(_RETRY_SECONDS)

    def _spec(self, member: Instance) -> ProcessSpec:
        return ProcessSpec(
            name=member.name,
            command=command_of(member),
            readiness=readiness(self.state_dir, member),
        )


def _alone(member: Instance, data: Path | None = None) -> Instance:
    """A member as a cluster of one, on its own data or a copy of it."""
    own = () if data is None else (f"--data-dir={data}",)
    kept = [
        flag for flag in member.arguments if not (own and flag.partition("=")[0] == "--data-dir")
    ]
    return replace(member, arguments=(*kept, *own, "--force-new-cluster=true"))


def _no_data(state_dir: StateDir) -> UserError:
    aside = sorted(path.name for path in state_dir.path.glob("etcd-*.*-*") if path.is_dir())
    return MissingError(
        "No etcd member of the control plane has data that can be read.",
        reason=f"Set aside earlier: {', '.join(aside) or 'nothing'}, in {state_dir.path}.",
        hint="Name a folder to continue from with --data: a backup of a member's data directory.",
    )


def _own_data(index: int) -> UserError:
    return InvalidInputError(
        f"etcd-{index} of the control plane can still be read.",
        reason="Its data is newer than any copy.",
        hint="Leave out --data.",
    )
