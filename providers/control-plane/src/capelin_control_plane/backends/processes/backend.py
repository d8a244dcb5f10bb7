"""Control planes as processes: started, supervised, adopted after a restart, stopped."""

import asyncio
import logging
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from capelin.client import Config, Server, User
from capelin.controller import ObjectKey
from capelin.provider import Blocked
from capelin_embedded.binaries import Binaries, BinariesError
from capelin_embedded.processes import (
    AlreadySupervisedError,
    NotReadyError,
    Supervisor,
    SupervisorFailedError,
    kill_all,
    marked_processes,
)

from capelin_control_plane.api.policy import DEFAULT_POLICY, Policy
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends import ReadSnapshot, Wake
from capelin_control_plane.backends.etcd_members import change_members, read_members, replace_member
from capelin_control_plane.backends.processes import member_data, restore_files
from capelin_control_plane.backends.processes.components import (
    Program,
    desired_components,
    listen_host,
    programs_of,
    read_key_pair,
    relay_target,
    renew_certificates,
    write_kubeconfigs,
)
from capelin_control_plane.backends.processes.instance_status import (
    disk_errors_block,
    instance_statuses,
    notify_relay,
)
from capelin_control_plane.backends.processes.members import ProcessMembers
from capelin_control_plane.backends.processes.plan import (
    Step,
    is_complete,
    is_resized,
    needs_membership,
    next_step,
)
from capelin_control_plane.backends.processes.state_dir import (
    Owner,
    StateDir,
    all_owners,
    find_state_dir,
    state_dirs_of,
)
from capelin_control_plane.backends.processes.supervised import (
    StartupThrottle,
    Supervised,
    processes_of,
)
from capelin_control_plane.backup.restores import restore_phase
from capelin_control_plane.desired.control_plane import PROGRAMS, Component, ControlPlane
from capelin_control_plane.desired.instances import (
    DesiredComponents,
    Endpoint,
    Observed,
    Plan,
    downgrade,
)
from capelin_control_plane.desired.instances import Phase as RestorePhase
from capelin_control_plane.etcd.api import EtcdApi, MembershipError, ready_member
from capelin_control_plane.keys.certificates import Authorities

_SECONDS_TO_ANSWER = 5.0
_SECONDS_TO_FIND_PROGRAMS = 1.0
_SECONDS_TO_START_AGAIN = 10.0
_DELETED = ".deleted"
_log = logging.getLogger(__name__)


class ProcessesBackend:
    """Runs control planes as processes of this machine. They outlive the provider."""

    def __init__(
        self, state: Path, binaries: Binaries, wake: Wake, policy: Policy = DEFAULT_POLICY
    ) -> None:
        self._state = state
        self._binaries = binaries
        self._wake = wake
        self._policy = policy
        self._supervised: dict[ObjectKey, Supervised] = {}
        self._unreadable: set[Path] = set()
        self._fetching: dict[str, asyncio.Task[Mapping[Component, Program]]] = {}
        self._throttle = StartupThrottle(wake)
        self._starting: dict[ObjectKey, asyncio.Task[None]] = {}
        """By control plane that is paused, the task that starts its instances."""

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
            supervised.wake_up()
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
                    membership = await read_members(ProcessMembers(supervised, components))
            except Blocked as error:
                # A restart continues: only its order depends on the list.
                if blocked is None and not is_resized(plan, components):
                    blocked = error
        alive = await supervised.alive(asleep=desired.asleep)
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
            serving=supervised.serving,
            alive=alive,
            recovering=supervised.recovering,
            losses=supervised.losses(desired.etcd_replicas),
            joined=member_data.joined_members(state_dir),
            membership=membership,
            voters=len(plan.voters),
            stopping=frozenset(states.keys() - names),
            controllers_may_start=self._throttle.controllers_may_start(key, answers=answers),
            blocked=blocked,
            renew_at=supervised.renew_at,
            restore=await _restore_phase(supervised, desired),
        )

    async def apply(
        self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane, observed: Observed
    ) -> bool:
        """Take the next step towards the desired instances, which were observed too."""
        del endpoint
        if desired.asleep:
            return self._supervised[key].fall_asleep()
        if observed.restore is RestorePhase.STOPPING:
            return await self._stop_for_restore(self._supervised[key])
        if observed.restore is RestorePhase.REPLACING:
            await self._replace_data(key)
            return True
        if observed.desired is None:
            return False
        step = next_step(observed.desired, observed)
        supervised = self._supervised[key]
        members = ProcessMembers(supervised, observed.desired)
        await self._take(members, step)
        if observed.membership is not None:
            # After a change, the desired number of members may be the planned one again.
            supervised.compared = step.change is None
        if step.change is not None and observed.membership is not None:
            with disk_errors_block():
                await change_members(members, step.change, observed.membership)
            # etcd's list has changed, and no process: take the next step.
            self._wake(key)
        return not (
            step.plan == observed.plan
            and step.replacement is None
            and step.set_aside is None
            and step.change is None
        )

    async def _take(self, members: ProcessMembers, step: Step) -> None:
        """Declare the plan of a step, and replace the etcd member that it names."""
        supervised = members.supervised
        state_dir = supervised.state_dir
        with disk_errors_block():
            for member in supervised.plan.of("etcd"):
                if member.name in supervised.ready:
                    member_data.mark_joined(state_dir, member.index)
            targets = [supervised.target(server) for server in step.serving]
            if state_dir.write_targets(targets) or step.plan != supervised.plan:
                # The previous provider may have died before it notified the relay. Notify again
                # before anything stops. A relay that is not up yet reads its targets at its start.
                with suppress(OSError):
                    await notify_relay(state_dir.relay_control)
            if step.plan != supervised.plan:
                supervised.set_plan(step.plan)
            if step.set_aside is not None:
                aside = member_data.set_aside(state_dir, step.set_aside, datetime.now(UTC))
                _log.warning(
                    "the data of etcd-%s is unusable, and set aside as %s", step.set_aside, aside
                )
            if step.replacement is not None:
                await replace_member(members, step.replacement)

    async def prepare_restore(
        self, key: ObjectKey, desired: ControlPlane, read: ReadSnapshot, *, bump: int
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
                supervised.state_dir,
                desired.restore,
                desired.etcd_replicas,
                etcdutl,
                read,
                bump=bump,
            )

    async def _stop_for_restore(self, supervised: Supervised) -> bool:
        """Stop everything but the relay. Returns whether something was planned."""
        plan = Plan(supervised.plan.of("relay"))
        if supervised.plan == plan:
            return False
        with disk_errors_block():
            supervised.state_dir.write_targets(())
            with suppress(OSError):
                await notify_relay(supervised.state_dir.relay_control)
            supervised.set_plan(plan)
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

    async def start_again(self, key: ObjectKey, address: str) -> frozenset[str]:
        """Start planned instances that have ended, in a task that holds the lock for seconds only.

        So another provider or `capelin recover` can take over a control plane that is paused.
        """
        ended = frozenset[str]()
        for state_dir in state_dirs_of(self._state, key):
            if state_dir.address == address:
                marked = await asyncio.to_thread(marked_processes, state_dir.run)
                planned = {instance.name for instance in state_dir.read_plan().instances}
                ended = frozenset(planned - {process.name for process in marked})
                task = self._starting.get(key)
                if ended and (task is None or task.done()):
                    self._starting[key] = asyncio.create_task(_start_planned(state_dir))
        return ended

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
        """Supervisors and locks end with the provider."""
        for task in self._starting.values():
            task.cancel()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)

    @asynccontextmanager
    async def etcd(self, key: ObjectKey, index: int | None = None) -> AsyncGenerator[EtcdApi]:
        """A connection to the member of an index, or to any member that is ready."""
        supervised = self._supervised.get(key)
        if supervised is None:
            raise MembershipError("no etcd member is ready")
        through = ready_member(supervised.ready_voters, index)
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
        supervised: Supervised,
        programs: Mapping[Component, Program],
    ) -> DesiredComponents:
        return desired_components(
            desired,
            supervised.state_dir,
            listen_host(supervised.state_dir, endpoint.host, self._policy),
            programs,
        )

    async def _supervise(self, key: ObjectKey, state_dir: StateDir) -> Supervised:
        """Take the lock of a state directory. Nothing is started or stopped yet."""
        if (starting := self._starting.pop(key, None)) is not None:
            starting.cancel()
            await asyncio.wait({starting})
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
        supervised = Supervised(state_dir, supervisor, watching, plan)
        self._supervised[key] = supervised
        return supervised

    async def _declare_once(self, supervised: Supervised) -> None:
        if supervised.declared:
            return
        if supervised.plan.instances:
            supervised.declare()
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
        programs: Mapping[Component, Program] = {}
        try:
            with disk_errors_block():
                programs = task.result()
        except BinariesError as error:
            raise Blocked(Reason.VERSION_NOT_AVAILABLE, f"spec.version: {error}") from error
        finally:
            # The next reconcile tries again: the network may have failed, or the disk was full.
            # Or the cache was pruned meanwhile. The same program gets the same path again.
            if not programs or not all(program.path.exists() for program in programs.values()):
                self._fetching.pop(version, None)
        if version in self._fetching:
            return programs
        return await self._programs(key, version)

    async def _fetch(self, version: str) -> Mapping[Component, Program]:
        names: dict[Component, str] = {
            program: program if program == "etcd" else f"{program}@{version}"
            for program in PROGRAMS
        }
        binaries = await self._binaries.fetch(names.values())
        return {program: Program(version, binaries[name].path) for program, name in names.items()}


async def _start_planned(state_dir: StateDir) -> None:
    """Start what was planned, in its order. The next attempt continues."""
    try:
        async with Supervisor(state_dir.run) as supervisor:
            supervisor.declare(*processes_of(state_dir, state_dir.read_plan()))
            await supervisor.ready(_SECONDS_TO_START_AGAIN)
    except (AlreadySupervisedError, NotReadyError, SupervisorFailedError, OSError) as error:
        _log.info("the control plane at %s does not run completely: %s", state_dir.address, error)


async def _restore_phase(supervised: Supervised, desired: ControlPlane) -> RestorePhase | None:
    files = await asyncio.to_thread(
        restore_files.read_restore, supervised.state_dir, desired.restore, desired.etcd_replicas
    )
    if desired.restore is None and not files.replacing:
        return None
    planned = {instance.component for instance in supervised.plan.instances}
    stopped = planned <= {"relay"} and restore_files.is_stopped(supervised.state_dir)
    return restore_phase(desired.restore, files, stopped=stopped)
