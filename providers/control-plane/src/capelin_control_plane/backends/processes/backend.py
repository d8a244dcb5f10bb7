"""Control planes as processes: started, supervised, adopted after a restart, stopped."""

import asyncio
import logging
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from capelin.client import Config, Server, User
from capelin.controller import ObjectKey
from capelin.embedded.binaries import Binaries, BinariesError
from capelin.embedded.processes import (
    AlreadySupervisedError,
    Phase,
    ProcessSpec,
    Supervisor,
    kill_all,
    marked_processes,
)
from capelin.provider import Blocked

from capelin_control_plane.backends import ReadSnapshot, Wake
from capelin_control_plane.backends.processes import member_data, restore_files
from capelin_control_plane.backends.processes.components import (
    Program,
    api_server_port,
    command_of,
    desired_components,
    grace_seconds,
    joining,
    listen_host,
    programs_of,
    relay_target,
)
from capelin_control_plane.backends.processes.instance_status import (
    disk_errors_block,
    instance_statuses,
)
from capelin_control_plane.backends.processes.pki_files import (
    read_key_pair,
    renew_certificates,
    write_kubeconfigs,
)
from capelin_control_plane.backends.processes.plan import (
    MemberReplacement,
    Step,
    is_complete,
    is_resized,
    needs_membership,
    next_step,
)
from capelin_control_plane.backends.processes.probes import (
    READINESS_PERIOD_SECONDS,
    liveness,
    notify_relay,
    reachability,
    readiness,
)
from capelin_control_plane.backends.processes.startup_throttle import StartupThrottle
from capelin_control_plane.backends.processes.state_dir import (
    Owner,
    StateDir,
    all_owners,
    find_state_dir,
    state_dirs_of,
)
from capelin_control_plane.certificates import Authorities
from capelin_control_plane.desired import PROGRAMS, Component, ControlPlane
from capelin_control_plane.etcd import (
    Loss,
    MemberChange,
    Membership,
    MoveLeadership,
    StartLearner,
    quorum,
)
from capelin_control_plane.etcd_api import EtcdApi, MembershipError, ready_member
from capelin_control_plane.instances import (
    DesiredComponents,
    Endpoint,
    Instance,
    Observed,
    Plan,
    downgrade,
)
from capelin_control_plane.policy import DEFAULT_POLICY, Policy
from capelin_control_plane.reasons import Reason
from capelin_control_plane.restores import Phase as RestorePhase
from capelin_control_plane.restores import restore_phase

_SECONDS_TO_ANSWER = 5.0
_SECONDS_TO_FIND_PROGRAMS = 1.0
_DELETED = ".deleted"
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Supervised:
    """A control plane that this provider supervises."""

    state_dir: StateDir
    supervisor: Supervisor
    watching: asyncio.Task[None]
    plan: Plan
    declared: bool = False
    """Whether the supervisor has the plan."""
    renew_at: datetime | None = None
    compared: bool = False
    """Whether the plan has the members that etcd lists."""
    asleep: bool = False
    """Whether the supervisor runs nothing of the plan."""

    @property
    def ready(self) -> set[str]:
        return self._names(Phase.RUNNING)

    @property
    def has_been_ready(self) -> set[str]:
        """The names of the processes that are ready, or were and still run."""
        return self._names(Phase.RUNNING, Phase.NOT_READY)

    def _names(self, *phases: Phase) -> set[str]:
        return {name for name, state in self.supervisor.states.items() if state.phase in phases}


class ProcessesBackend:
    """Runs control planes as processes of this machine. They outlive the provider."""

    def __init__(
        self, state: Path, binaries: Binaries, wake: Wake, policy: Policy = DEFAULT_POLICY
    ) -> None:
        self._state = state
        self._binaries = binaries
        self._wake = wake
        self._policy = policy
        self._supervised: dict[ObjectKey, _Supervised] = {}
        self._unreadable: set[Path] = set()
        self._fetching: dict[str, asyncio.Task[Mapping[Component, Program]]] = {}
        self._throttle = StartupThrottle(wake)

    async def allocate(
        self,
        key: ObjectKey,
        desired: ControlPlane,
        authorities: Authorities,
        address: str | None,
    ) -> Endpoint:
        """Find or create the state directory, take its lock, and renew its certificates."""
        with disk_errors_block():
            owner = Owner(key.namespace, desired.cluster, authorities.identity, key.name)
            state_dir = find_state_dir(self._state, owner, address, port=desired.port)
            supervised = await self._supervise(key, state_dir)
            host = desired.host or state_dir.address
            listen = listen_host(state_dir, host, self._policy)
            self._check_target(state_dir, (listen, desired.port))
            supervised.renew_at = renew_certificates(state_dir, desired, authorities, host)
            write_kubeconfigs(state_dir, Endpoint(listen, listen, desired.port).url)
            return Endpoint(state_dir.address, host, desired.port)

    async def observe(self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane) -> Observed:
        """Read plan, processes and etcd data. The first time, start what was planned."""
        supervised = self._supervised[key]
        state_dir, plan = supervised.state_dir, supervised.plan
        if not desired.asleep:
            _wake_up(supervised)
            await self._declare_once(supervised)
        servers = plan.of("kube-apiserver")
        served = supervised.has_been_ready
        serving = [server.version for server in servers if server.name in served]
        programs, blocked = None, downgrade(serving, desired.version)
        try:
            if blocked is None:
                programs = await self._programs(key, desired.version)
        except Blocked as error:
            blocked = error
        if blocked is not None:
            # Everything but the upgrade continues.
            programs = programs_of(plan)
        comparable, components, membership = blocked is None, None, None
        if programs is not None:
            components = self._components(desired, endpoint, supervised, programs)
            try:
                if needs_membership(plan, components) or not supervised.compared:
                    membership = await _membership(supervised)
            except MembershipError as error:
                # A restart continues: only its order depends on the list.
                if blocked is None and not is_resized(plan, components):
                    blocked = Blocked(Reason.ETCD_RESIZING, str(error))
        alive = await _alive(supervised, asleep=desired.asleep)
        states = supervised.supervisor.states
        names = {instance.name for instance in plan.instances}
        answers = any(server.name in supervised.ready for server in servers)
        return Observed(
            plan=plan,
            statuses=instance_statuses(
                plan, components, states, state_dir, desired, comparable=comparable
            ),
            desired=components,
            complete=components is not None and is_complete(plan, components),
            serving=_serving(supervised),
            alive=alive,
            recovering=_recovering(supervised),
            losses=_losses(supervised, desired.etcd_replicas),
            joined=member_data.joined_members(state_dir),
            membership=membership,
            voters=len(plan.voters),
            stopping=frozenset(states.keys() - names),
            controllers_may_start=self._throttle.controllers_may_start(key, answers=answers),
            blocked=blocked,
            renew_at=supervised.renew_at,
            restore=_restore_phase(supervised, desired),
        )

    async def apply(
        self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane, observed: Observed
    ) -> bool:
        """Take the next step towards the desired instances, which were observed too."""
        del endpoint
        if desired.asleep:
            return _fall_asleep(self._supervised[key])
        if observed.restore is RestorePhase.STOPPING:
            return await self._stop_for_restore(self._supervised[key])
        if observed.restore is RestorePhase.REPLACING:
            await self._replace_data(key)
            return True
        if observed.desired is None:
            return False
        step = next_step(observed.desired, observed)
        await self._take(key, step)
        supervised = self._supervised[key]
        if observed.membership is not None:
            # After a change, the desired number of members may be the planned one again.
            supervised.compared = step.change is None
        if step.change is not None and observed.membership is not None:
            with disk_errors_block():
                await _change_members(
                    supervised, step.change, observed.desired, observed.membership
                )
            # etcd's list has changed, and no process: take the next step.
            self._wake(key)
        return not (
            step.plan == observed.plan
            and step.replacement is None
            and step.set_aside is None
            and step.change is None
        )

    async def _take(self, key: ObjectKey, step: Step) -> None:
        """Declare the plan of a step, and replace the etcd member that it names."""
        supervised = self._supervised[key]
        state_dir = supervised.state_dir
        with disk_errors_block():
            for member in supervised.plan.of("etcd"):
                if member.name in supervised.ready:
                    member_data.mark_joined(state_dir, member.index)
            targets = [_target(supervised, server) for server in step.serving]
            if state_dir.write_targets(targets) or step.plan != supervised.plan:
                # The previous provider may have died before it notified the relay. Notify again
                # before anything stops. A relay that is not up yet reads its targets at its start.
                with suppress(OSError):
                    await notify_relay(state_dir.relay_control)
            if step.plan != supervised.plan:
                _set_plan(supervised, step.plan)
            if step.set_aside is not None:
                aside = member_data.set_aside(state_dir, step.set_aside, datetime.now(UTC))
                _log.warning(
                    "the data of etcd-%s is unusable, and set aside as %s", step.set_aside, aside
                )
            if step.replacement is not None:
                await _replace_member(supervised, step.replacement)

    async def prepare_restore(
        self, key: ObjectKey, desired: ControlPlane, read: ReadSnapshot
    ) -> None:
        """Create the data of the requested restore."""
        supervised = self._supervised.get(key)
        if supervised is None or desired.restore is None:
            return
        try:
            etcdutl = await self._binaries.path("etcdutl")
        except BinariesError as error:
            raise Blocked(Reason.RESTORE_FAILED, str(error)) from error
        with disk_errors_block():
            await restore_files.prepare(
                supervised.state_dir, desired.restore, desired.etcd_replicas, etcdutl, read
            )

    async def _stop_for_restore(self, supervised: _Supervised) -> bool:
        """Stop everything but the relay. Returns whether something was planned."""
        plan = Plan(supervised.plan.of("relay"))
        if supervised.plan == plan:
            return False
        with disk_errors_block():
            supervised.state_dir.write_targets(())
            with suppress(OSError):
                await notify_relay(supervised.state_dir.relay_control)
            _set_plan(supervised, plan)
        return True

    async def _replace_data(self, key: ObjectKey) -> None:
        """Replace the data of all members. Nothing uses it."""
        supervised = self._supervised[key]
        with disk_errors_block():
            now = datetime.now(UTC)
            await asyncio.to_thread(restore_files.replace_data, supervised.state_dir, now)
        supervised.compared = False
        self._wake(key)

    async def keep_running(self, key: ObjectKey, address: str) -> None:
        """Keep what was planned running, while the desired state is unknown."""
        with disk_errors_block():
            for state_dir in state_dirs_of(self._state, key):
                # Another provider that has the lock keeps it running.
                if state_dir.address == address:
                    with suppress(Blocked):
                        await self._declare_once(await self._supervise(key, state_dir))

    async def release(self, key: ObjectKey) -> None:
        self._throttle.forget(key)
        supervised = self._supervised.pop(key, None)
        if supervised is not None:
            supervised.watching.cancel()
            ended = await asyncio.gather(supervised.watching, return_exceptions=True)
            try:
                await supervised.supervisor.__aexit__(None, None, None)
            except Exception:  # noqa: BLE001 - whatever ended it
                # It ended by itself: the next reconcile supervises again.
                _log.exception("the supervisor of %s failed: %s", key, ended)

    async def allocated(self) -> set[ObjectKey]:
        """The objects that state directories belong to."""
        owners = all_owners(self._state)
        for path in owners.keys() - self._unreadable:
            if owners[path] is None:
                self._unreadable.add(path)
                _log.error("%s has no readable owner.json: restore it from a backup", path)
        return {owner.key for owner in owners.values() if owner is not None}

    async def delete(self, key: ObjectKey) -> None:
        """Stop a control plane and delete its state directory."""
        with disk_errors_block():
            for state_dir in state_dirs_of(self._state, key):
                supervised = await self._supervise(key, state_dir)
                supervised.supervisor.declare()
                # It has no clients, and its data is deleted: no time to end in order.
                await kill_all(state_dir.run)
                await supervised.supervisor.stop()
                await self.release(key)
                # Renamed in one step, so that no provider finds half a control plane.
                deleted = self._state / f".{state_dir.address}{_DELETED}"
                deleted = deleted / state_dir.address if deleted.exists() else deleted
                state_dir.path.rename(deleted)
            for deleted in self._state.glob(f".*{_DELETED}"):
                # Also those that an earlier provider left, or that another one is deleting.
                with suppress(FileNotFoundError):
                    await asyncio.to_thread(shutil.rmtree, deleted)

    async def close(self) -> None:
        """Nothing to do: supervisors and locks end with the provider."""

    @asynccontextmanager
    async def etcd(self, key: ObjectKey, index: int | None = None) -> AsyncGenerator[EtcdApi]:
        """A connection to the member of an index, or to any member that is ready."""
        supervised = self._supervised.get(key)
        if supervised is None:
            raise MembershipError("no etcd member is ready")
        through = ready_member(_ready_voters(supervised), index)
        async with member_data.connect(supervised.state_dir, through) as api:
            yield api

    def client_config(self, endpoint: Endpoint) -> Config:
        state_dir = StateDir(self._state / endpoint.address, endpoint.address)
        admin = read_key_pair(state_dir.certificate("admin"))
        if admin is None:
            raise FileNotFoundError(state_dir.certificate("admin"))
        listen = listen_host(state_dir, endpoint.host, self._policy)
        server = Endpoint(listen, listen, endpoint.port).url
        ca = state_dir.ca("ca").read_bytes()
        return Config(Server(server, ca), User(admin.certificate_pem, admin.private_key_pem))

    def _check_target(self, state_dir: StateDir, target: tuple[str, int]) -> None:
        """Two control planes cannot listen at one address and port."""
        if target[0] == state_dir.address:
            return
        for other in all_owners(self._state):
            relays = StateDir(other, other.name).read_plan().of("relay")
            if other.name != state_dir.address and target in map(relay_target, relays):
                raise Blocked(
                    Reason.ENDPOINT_TAKEN,
                    f"another control plane's endpoint is {target[0]}:{target[1]}",
                    "write another port",
                )

    def _components(
        self,
        desired: ControlPlane,
        endpoint: Endpoint,
        supervised: _Supervised,
        programs: Mapping[Component, Program],
    ) -> DesiredComponents:
        return desired_components(
            desired,
            supervised.state_dir,
            listen_host(supervised.state_dir, endpoint.host, self._policy),
            programs,
        )

    async def _supervise(self, key: ObjectKey, state_dir: StateDir) -> _Supervised:
        """Take the lock of a state directory. Nothing is started or stopped yet."""
        present = self._supervised.get(key)
        if present is not None and present.state_dir == state_dir and not present.watching.done():
            return present
        for other, supervised in list(self._supervised.items()):
            # A new object of the same name, another one that takes over, or an ended supervisor.
            if other == key or supervised.state_dir == state_dir:
                await self.release(other)
        try:
            async with AsyncExitStack() as stack:
                supervisor = await stack.enter_async_context(Supervisor(state_dir.run))
                plan = state_dir.read_plan()
                stack.pop_all()
        except AlreadySupervisedError as error:
            raise Blocked(
                Reason.MANAGED_BY_ANOTHER_PROVIDER,
                "another provider on this machine manages the control plane at"
                f" {state_dir.address} until its object is paused or deleted",
            ) from error
        watching = asyncio.create_task(self._watch(key, supervisor))
        supervised = _Supervised(state_dir, supervisor, watching, plan)
        self._supervised[key] = supervised
        return supervised

    async def _declare_once(self, supervised: _Supervised) -> None:
        if supervised.declared:
            return
        if supervised.plan.instances:
            _declare(supervised)
            # Before its first probe, a serving API server would count as down.
            await supervised.supervisor.probed(_SECONDS_TO_ANSWER)
        supervised.declared = True

    async def _watch(self, key: ObjectKey, supervisor: Supervisor) -> None:
        try:
            async for _ in supervisor.changes():
                self._wake(key)
        except Exception as error:  # noqa: BLE001 - whatever ended it
            _log.error("the supervisor of %s ended: %r", key, error)
            self._wake(key)

    async def _programs(self, key: ObjectKey, version: str) -> Mapping[Component, Program]:
        task = self._fetching.get(version)
        if task is None:
            task = self._fetching[version] = asyncio.create_task(self._fetch(version))
        await asyncio.wait({task}, timeout=_SECONDS_TO_FIND_PROGRAMS)
        if not task.done():
            task.add_done_callback(lambda _: self._wake(key))
            raise Blocked(Reason.GETTING_PROGRAMS, f"getting the programs of Kubernetes {version}")
        try:
            programs = task.result()
        except BinariesError as error:
            # The next reconcile tries again: the network may have failed.
            self._fetching.pop(version, None)
            raise Blocked(Reason.VERSION_NOT_AVAILABLE, f"spec.version: {error}") from error
        if all(program.path.exists() for program in programs.values()):
            return programs
        # The cache was pruned meanwhile. The same program gets the same path again.
        self._fetching.pop(version, None)
        return await self._programs(key, version)

    async def _fetch(self, version: str) -> Mapping[Component, Program]:
        names: dict[Component, str] = {
            program: program if program == "etcd" else f"{program}@{version}"
            for program in PROGRAMS
        }
        binaries = await self._binaries.fetch(names.values())
        return {program: Program(version, binaries[name].path) for program, name in names.items()}


def _restore_phase(supervised: _Supervised, desired: ControlPlane) -> RestorePhase | None:
    files = restore_files.read_restore(supervised.state_dir)
    if desired.restore is None and not files.replacing:
        return None
    planned = {instance.component for instance in supervised.plan.instances}
    stopped = planned <= {"relay"} and restore_files.is_stopped(supervised.state_dir)
    return restore_phase(desired.restore, files, stopped=stopped)


async def _alive(supervised: _Supervised, *, asleep: bool) -> frozenset[str]:
    if asleep:
        # Also those of an earlier provider that this one does not supervise yet. In a thread: it
        # reads the environment of each process of the machine.
        marked = await asyncio.to_thread(marked_processes, supervised.state_dir.run)
        return frozenset(process.name for process in marked)
    states = supervised.supervisor.states.items()
    return frozenset(name for name, state in states if state.pid is not None)


def _serving(supervised: _Supervised) -> frozenset[str]:
    targets = supervised.state_dir.read_targets()
    return frozenset(
        server.name
        for server in supervised.plan.of("kube-apiserver")
        if _target(supervised, server) in targets
    )


def _target(supervised: _Supervised, server: Instance) -> str:
    return f"{supervised.state_dir.address}:{api_server_port(server.index)}"


def _recovering(supervised: _Supervised) -> frozenset[str]:
    """The etcd members that were ready before, and have not failed since."""
    states = supervised.supervisor.states.items()
    known = {name for name, state in states if state.phase in {Phase.RUNNING, Phase.FAILED}}
    return frozenset(
        member.name
        for member in supervised.plan.of("etcd")
        if member.name not in known and member_data.has_joined(supervised.state_dir, member.index)
    )


def _losses(supervised: _Supervised, size: int) -> dict[int, Loss]:
    """By index, the etcd members that cannot continue with their own data."""
    states = supervised.supervisor.states.items()
    failures = {name: state.reason for name, state in states if state.phase is Phase.FAILED}
    losses: dict[int, Loss] = {}
    for index in range(size):
        failure = failures.get(f"etcd-{index}", "")
        loss = member_data.member_loss(supervised.state_dir, index, failure)
        if loss is not None:
            losses[index] = loss
    return losses


def _set_plan(supervised: _Supervised, plan: Plan) -> None:
    # Write first: if the disk is full, the next reconcile plans the change again.
    supervised.state_dir.write_plan(plan)
    supervised.plan = plan
    _declare(supervised)


def _fall_asleep(supervised: _Supervised) -> bool:
    """Stop everything. The plan stays: the same instances run when it wakes."""
    if supervised.asleep:
        return False
    with disk_errors_block():
        supervised.state_dir.write_targets(())
    supervised.supervisor.declare()
    supervised.asleep = True
    return True


def _wake_up(supervised: _Supervised) -> None:
    """Start the instances that ran before."""
    if supervised.asleep:
        _declare(supervised)
        supervised.asleep, supervised.declared = False, True


async def _replace_member(supervised: _Supervised, replacement: MemberReplacement) -> None:
    state_dir, member = supervised.state_dir, replacement.member
    listed = await member_data.make_room(state_dir, member.index, through=replacement.through)
    data = state_dir.etcd_data(member.index)
    await asyncio.to_thread(shutil.rmtree, data, ignore_errors=True)
    plan = supervised.plan.including(joining(member, listed, state_dir))
    state_dir.write_plan(plan)
    supervised.plan = plan
    # Only now: without the mark, a lost member would begin an empty cluster.
    member_data.unmark_joined(state_dir, member.index)
    _declare(supervised)


async def _membership(supervised: _Supervised) -> Membership | None:
    """The list of members that etcd itself has. None if no member is ready.

    Raises:
        MembershipError: no ready member returns a list that the provider understands.
    """
    failure = None
    for index in _ready_voters(supervised):
        try:
            return await member_data.membership(supervised.state_dir, through=index)
        except (OSError, MembershipError) as error:
            failure = error
    if failure is not None:
        raise MembershipError(f"etcd does not list its members: {failure}") from failure
    return None


def _ready_voters(supervised: _Supervised) -> list[int]:
    voters = supervised.plan.voters
    return [member.index for member in voters if member.name in supervised.ready]


async def _change_members(
    supervised: _Supervised,
    change: MemberChange,
    desired: DesiredComponents,
    present: Membership,
) -> None:
    match change:
        case StartLearner(index):
            await _start_learner(supervised, desired.etcd[index], present)
            return
        case MoveLeadership(leader, _):
            through = leader
        case _:
            others = (index for index in _ready_voters(supervised) if index != change.index)
            through = next(others, None)
    if through is None:
        raise Blocked(Reason.ETCD_RESIZING, "no other etcd member is ready")
    await member_data.change_members(supervised.state_dir, change, present, through=through)


async def _start_learner(supervised: _Supervised, member: Instance, present: Membership) -> None:
    state_dir = supervised.state_dir
    # First: a member that is marked and has no data counts as one that lost it.
    member_data.unmark_joined(state_dir, member.index)
    await asyncio.to_thread(member_data.clear_data, state_dir, member.index, datetime.now(UTC))
    learner = replace(joining(member, present.members.keys(), state_dir), is_learner=True)
    _set_plan(supervised, supervised.plan.including(learner))


def _declare(supervised: _Supervised) -> None:
    plan, state_dir = supervised.plan, supervised.state_dir
    supervised.supervisor.declare(
        *(_declared(state_dir, instance, plan) for instance in plan.instances)
    )


def _declared(state_dir: StateDir, instance: Instance, plan: Plan) -> ProcessSpec:
    is_member, is_server = instance.component == "etcd", instance.component == "kube-apiserver"
    after, enough = _starts_after(instance, plan)
    return ProcessSpec(
        name=instance.name,
        command=command_of(instance),
        after=tuple(other.name for other in after),
        enough=enough,
        grace=grace_seconds(instance),
        reachable=reachability(state_dir, instance),
        readiness=readiness(state_dir, instance),
        readiness_period=READINESS_PERIOD_SECONDS if is_server else None,
        liveness=liveness(state_dir, instance),
        start_check=partial(member_data.start_refusal, state_dir, instance.index)
        if is_member
        else None,
    )


def _starts_after(instance: Instance, plan: Plan) -> tuple[Sequence[Instance], int]:
    """The instances that an instance needs, and how many of them it needs when it starts.

    After a sleep all start at once, and controllers would delay the API server.
    """
    match instance.component:
        case "kube-apiserver":
            return plan.voters, quorum(len(plan.voters))
        case "kube-controller-manager" | "kube-scheduler":
            return plan.of("kube-apiserver"), 1
        case _:
            return (), 0
