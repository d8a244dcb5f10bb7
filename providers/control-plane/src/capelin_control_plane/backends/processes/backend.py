"""Control planes as processes: started, looked after, adopted again, stopped."""

import asyncio
import shutil
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from capelin.client import Config
from capelin.controller import ObjectKey
from capelin.embedded.binaries import Binaries, BinariesError
from capelin.embedded.processes import (
    AlreadySupervisedError,
    Declared,
    Phase,
    Supervisor,
    kill_all,
)
from capelin.pki import kubeconfig

from capelin_control_plane.backends import Observed, Problem, Site, Wake
from capelin_control_plane.backends.processes import files, members
from capelin_control_plane.backends.processes.composition import (
    api_server_port,
    composition,
    seconds_to_go,
)
from capelin_control_plane.backends.processes.parts import parts
from capelin_control_plane.backends.processes.places import (
    Place,
    belongs_to,
    claim,
    find,
    is_address,
    listen_host,
    owner_of,
    site_of,
)
from capelin_control_plane.backends.processes.probes import (
    liveness,
    reachability,
    readiness,
    tell_relay,
)
from capelin_control_plane.backends.processes.turns import Turns
from capelin_control_plane.certificates import Authorities
from capelin_control_plane.desired import PROGRAMS, ControlPlane, Program
from capelin_control_plane.plan import (
    Composition,
    Plan,
    is_complete,
    next_plan,
)

_SECONDS_TO_ANSWER = 5.0
_SECONDS_TO_FIND_PROGRAMS = 1.0


@dataclass(slots=True, eq=False)
class _Care:
    """A control plane that this provider looks after."""

    place: Place
    supervisor: Supervisor
    watching: asyncio.Task[None]
    plan: Plan = field(default_factory=Plan)


class Processes:
    """Control planes as processes of this machine. They outlive the provider."""

    def __init__(self, state: Path, binaries: Binaries, wake: Wake) -> None:
        self._state = state
        self._binaries = binaries
        self._wake = wake
        self._cared_for: dict[ObjectKey, _Care] = {}
        self._getting: dict[str, asyncio.Task[Mapping[Program, Path]]] = {}
        self._turns = Turns(wake)

    async def claim(
        self, wanted: ControlPlane, authorities: Authorities, address: str | None
    ) -> Site | Problem:
        """Find the place of a control plane, or take one."""
        place = claim(self._state, wanted, authorities, address)
        return place if isinstance(place, Problem) else site_of(place, wanted)

    async def find(self, namespace: str, cluster: str, ca_certificate_pem: bytes) -> str | None:
        """The address of a control plane that has a place, whether or not it was ever told."""
        return find(self._state, owner_of(namespace, cluster, ca_certificate_pem))

    async def move(
        self,
        key: ObjectKey,
        site: Site,
        wanted: ControlPlane,
        authorities: Authorities,
        now: datetime,
    ) -> Observed:
        """Take the next step towards what is wanted, and tell what there is."""
        try:
            care = await self._care_for(key, site.address)
        except AlreadySupervisedError:
            return Observed(
                problem=Problem(
                    "LookedAfterElsewhere",
                    f"another provider on this machine looks after the control plane at"
                    f" {site.address}; it lets go when its object there is paused or gone",
                )
            )
        renew_at = files.write_certificates(care.place, wanted, authorities, site.host, now)
        programs = await self._programs(key, wanted.version)
        if isinstance(programs, Problem):
            return self._observed(care, wanted, None, programs, renew_at)
        listen = listen_host(care.place, site.host)
        files.write_kubeconfigs(care.place, f"https://{listen}:{site.port}")
        compose = partial(composition, wanted, care.place, listen, programs)
        problem = await self._mend_etcd(care, compose)
        goal = compose(rejoined=_rejoined(care.plan))
        await self._step(key, care, goal)
        return self._observed(care, wanted, goal, problem, renew_at)

    async def look_after(self, key: ObjectKey, cluster: str, address: str) -> None:
        """Keep up what there is of a control plane, as it was planned last."""
        if is_address(address) and belongs_to(self._state / address, key.namespace, cluster):
            with suppress(AlreadySupervisedError):
                await self._care_for(key, address)

    def workload(self, site: Site) -> Config:
        """How the provider itself talks to the API of a control plane."""
        place = Place(self._state / site.address, site.address)
        admin = files.read_leaf(place.leaf("admin"))
        if admin is None:
            raise FileNotFoundError(place.leaf("admin"))
        server = f"https://{listen_host(place, site.host)}:{site.port}"
        authority = place.authority("ca").read_bytes()
        return Config.from_kubeconfig(kubeconfig(server, authority, "capelin", admin))

    async def release(self, key: ObjectKey) -> None:
        """Stop looking after a control plane; it runs on."""
        self._turns.forget(key)
        care = self._cared_for.pop(key, None)
        if care is not None:
            care.watching.cancel()
            with suppress(asyncio.CancelledError):
                await care.watching
            await care.supervisor.__aexit__(None, None, None)

    async def remove(self, key: ObjectKey, cluster: str, address: str) -> None:
        """Stop a control plane and remove all that there is of it; never that of another cluster.

        `address` is what its object says, which may be a copy of another one's.
        """
        if not is_address(address):
            return
        folder, gone = self._state / address, self._state / f".{address}.gone"
        if belongs_to(folder, key.namespace, cluster):
            care = self._cared_for.get(key) or await self._take_on(key, address)
            care.supervisor.declare()
            # Nobody is to be served any more, and nothing of it is kept.
            await kill_all(care.place.processes)
            await care.supervisor.stop()
            await self.release(key)
            # Out of sight in one step, so that half a control plane is never found.
            folder.rename(gone / address if gone.exists() else gone)
        if gone.exists():
            await asyncio.to_thread(shutil.rmtree, gone)

    async def _care_for(self, key: ObjectKey, address: str) -> _Care:
        if key in self._cared_for:
            return self._cared_for[key]
        care = await self._take_on(key, address)
        if care.plan.instances:
            self._declare(care)
            # What serves, and does not say so in time, would be taken for down.
            await care.supervisor.acquainted(_SECONDS_TO_ANSWER)
        return care

    async def _take_on(self, key: ObjectKey, address: str) -> _Care:
        """Become the one who looks after a control plane; nothing is started or stopped yet."""
        place = Place((self._state / address).resolve(), address)
        async with AsyncExitStack() as undone:
            supervisor = await undone.enter_async_context(Supervisor(place.processes))
            plan = files.read_plan(place)
            undone.pop_all()
        watching = asyncio.create_task(self._watch(key, supervisor))
        care = self._cared_for[key] = _Care(place, supervisor, watching, plan)
        return care

    async def _watch(self, key: ObjectKey, supervisor: Supervisor) -> None:
        async for _ in supervisor.changes():
            self._wake(key)

    async def _programs(self, key: ObjectKey, version: str) -> Mapping[Program, Path] | Problem:
        """The programs of a version; while they're being got, why there are none yet."""
        task = self._getting.get(version)
        if task is None:
            task = self._getting[version] = asyncio.create_task(self._get(version))
        await asyncio.wait({task}, timeout=_SECONDS_TO_FIND_PROGRAMS)
        if not task.done():
            task.add_done_callback(lambda _: self._wake(key))
            return Problem("GettingPrograms", f"getting the programs of Kubernetes {version}")
        try:
            return task.result()
        except BinariesError as error:
            # Tried again at the next reconcile: it may have been the network.
            self._getting.pop(version, None)
            return Problem("VersionNotAvailable", f"spec.version: {error}")

    async def _get(self, version: str) -> Mapping[Program, Path]:
        names: dict[Program, str] = {
            program: program if program == "etcd" else f"{program}@{version}"
            for program in PROGRAMS
        }
        found = await self._binaries.fetch(names.values())
        return {program: found[name].path for program, name in names.items()}

    async def _mend_etcd(self, care: _Care, compose: Callable[..., Composition]) -> Problem | None:
        """Take the next step towards having an etcd member again that lost its data."""
        slots = len(compose().etcd)
        ready = {one.slot for one in care.plan.of("etcd") if one.name in _ready(care)}
        for slot in ready:
            members.remember(care.place, slot)
        lost = members.to_replace(care.place, slots, ready)
        if lost is None:
            return None
        there = next((one for one in care.plan.of("etcd") if one.slot == lost), None)
        if there is not None:
            self._go_on_with(care, care.plan.without(there))
            return None
        one = compose(rejoined={*_rejoined(care.plan), lost}).etcd[lost]
        if one.name in care.supervisor.states:
            # Still being stopped; the supervisor tells when it is.
            return None
        try:
            await members.make_room(care.place, lost, through=min(ready))
        except members.MemberError as error:
            return Problem("EtcdMemberLost", f"{one.name} cannot be replaced yet: {error}")
        await asyncio.to_thread(shutil.rmtree, care.place.etcd(lost), ignore_errors=True)
        self._remember(care, care.plan.including(one))
        members.forget(care.place, lost)
        self._declare(care)
        return None

    def _go_on_with(self, care: _Care, plan: Plan) -> None:
        self._remember(care, plan)
        self._declare(care)

    def _remember(self, care: _Care, plan: Plan) -> None:
        # Written first: what a full disk does not take is planned anew at the next reconcile.
        files.write_plan(care.place, plan)
        care.plan = plan

    async def _step(self, key: ObjectKey, care: _Care, goal: Composition) -> None:
        plan, ready = care.plan, _ready(care)
        answers = any(one.name in ready for one in plan.of("kube-apiserver"))
        onward = partial(
            next_plan,
            wanted=goal,
            coming=_coming(care),
            controllers_may_start=self._turns.may_start_controllers(key, answers=answers),
        )
        while (following := onward(plan, ready=ready)) != plan:
            # What is only planned is not up, even in place of one that is and has the same name.
            ready = {one.name for one in following.instances if one in plan.instances} & ready
            plan = following
        targets = [
            f"{care.place.address}:{api_server_port(one.slot)}"
            for one in plan.of("kube-apiserver")
            if one.name in ready and one in care.plan.instances
        ]
        if files.write_targets(care.place, targets) or plan != care.plan:
            # Whoever wrote them may have been killed before it could tell, and what they no longer
            # name may be stopped now. A relay that is not up yet reads them when it starts.
            with suppress(OSError):
                await tell_relay(care.place.relay)
        if plan != care.plan:
            self._go_on_with(care, plan)

    def _declare(self, care: _Care) -> None:
        etcd = tuple(one.name for one in care.plan.of("etcd"))
        care.supervisor.declare(
            *(
                Declared(
                    name=one.name,
                    command=one.command,
                    after=etcd if one.component == "kube-apiserver" else (),
                    enough=len(etcd) // 2 + 1,
                    grace=seconds_to_go(one),
                    reachable=reachability(care.place, one),
                    ready=readiness(care.place, one),
                    alive=liveness(care.place, one),
                    refusal=partial(members.why_not_start, care.place, one.slot)
                    if one.component == "etcd"
                    else None,
                )
                for one in care.plan.instances
            )
        )

    def _observed(
        self,
        care: _Care,
        wanted: ControlPlane,
        goal: Composition | None,
        problem: Problem | None,
        renew_at: datetime | None,
    ) -> Observed:
        return Observed(
            parts=parts(care.plan, goal, care.supervisor.states, care.place, wanted.tuning),
            complete=goal is not None and is_complete(care.plan, goal),
            problem=problem,
            renew_at=renew_at,
        )


def _rejoined(plan: Plan) -> set[int]:
    return {one.slot for one in plan.of("etcd") if one.rejoined}


def _ready(care: _Care) -> set[str]:
    return {name for name, state in care.supervisor.states.items() if state.phase is Phase.RUNNING}


def _coming(care: _Care) -> set[str]:
    """The etcd members that were ready once, and that nothing says to have failed since."""
    states = care.supervisor.states.items()
    known = {name for name, state in states if state.phase in {Phase.RUNNING, Phase.FAILED}}
    return {
        one.name
        for one in care.plan.of("etcd")
        if one.name not in known and members.has_joined(care.place, one.slot)
    }
