"""A control plane on processes that this provider supervises, and its share of the processors."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from capelin.controller import ObjectKey
from capelin_embedded.processes import Phase, ProcessSpec, Supervisor, marked_processes

from capelin_control_plane.backends import Wake
from capelin_control_plane.backends.processes import member_data
from capelin_control_plane.backends.processes.components import (
    api_server_port,
    command_of,
    grace_seconds,
)
from capelin_control_plane.backends.processes.instance_status import (
    READINESS_PERIOD_SECONDS,
    disk_errors_block,
    liveness,
    reachability,
    readiness,
)
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.desired.instances import Instance, Plan
from capelin_control_plane.etcd.rules import Loss, quorum

PATIENCE_SECONDS = 15.0
"""How long a control plane that answers waits with its controllers for others."""


class StartupThrottle:
    """Delays controllers of one control plane while API servers of others start.

    A controller manager and a scheduler take half as much to start as an API server, and Cluster
    API continues with a cluster as soon as its API answers.
    """

    def __init__(self, wake: Wake, patience: float = PATIENCE_SECONDS) -> None:
        self._wake = wake
        self._patience = patience
        self._starting: set[ObjectKey] = set()
        self._answers_since: dict[ObjectKey, float] = {}
        self._delayed: set[ObjectKey] = set()

    def controllers_may_start(self, key: ObjectKey, *, answers: bool) -> bool:
        """Whether controllers of this control plane may start. It is woken when that changes."""
        loop = asyncio.get_running_loop()
        if not answers:
            if key not in self._answers_since:
                self._starting.add(key)
            return False
        self._answers_since.setdefault(key, loop.time())
        self._not_starting(key)
        left = self._answers_since[key] + self._patience - loop.time()
        if not self._starting or left <= 0:
            self._delayed.discard(key)
            return True
        if key not in self._delayed:
            self._delayed.add(key)
            loop.call_later(left, self._wake, key)
        return False

    def forget(self, key: ObjectKey) -> None:
        """Let no other control plane wait for this one."""
        self._answers_since.pop(key, None)
        self._delayed.discard(key)
        self._not_starting(key)

    def _not_starting(self, key: ObjectKey) -> None:
        if key in self._starting:
            self._starting.remove(key)
            if not self._starting:
                for delayed in self._delayed:
                    self._wake(delayed)


@dataclass(slots=True, eq=False)
class Supervised:
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

    @property
    def serving(self) -> frozenset[str]:
        """The API servers that get connections."""
        targets = self.state_dir.read_targets()
        return frozenset(
            server.name
            for server in self.plan.of("kube-apiserver")
            if self.target(server) in targets
        )

    @property
    def recovering(self) -> frozenset[str]:
        """The etcd members that were ready before, and have not failed since."""
        states = self.supervisor.states.items()
        known = {name for name, state in states if state.phase in {Phase.RUNNING, Phase.FAILED}}
        return frozenset(
            member.name
            for member in self.plan.of("etcd")
            if member.name not in known and member_data.has_joined(self.state_dir, member.index)
        )

    @property
    def ready_voters(self) -> list[int]:
        """The indexes of the members of etcd that are ready and vote."""
        voters = self.plan.voters
        return [member.index for member in voters if member.name in self.ready]

    def target(self, server: Instance) -> str:
        """An API server, for the relay."""
        return f"{self.state_dir.address}:{api_server_port(server.index)}"

    def losses(self, size: int) -> dict[int, Loss]:
        """By index, the etcd members that cannot continue with their own data."""
        states = self.supervisor.states.items()
        failures = {name: state.reason for name, state in states if state.phase is Phase.FAILED}
        losses: dict[int, Loss] = {}
        for index in range(size):
            failure = failures.get(f"etcd-{index}", "")
            loss = member_data.member_loss(self.state_dir, index, failure)
            if loss is not None:
                losses[index] = loss
        return losses

    async def alive(self, *, asleep: bool) -> frozenset[str]:
        """The instances that have a process."""
        if asleep:
            # Also those of an earlier provider that this one does not supervise yet. In a thread:
            # it reads the environment of each process of the machine.
            marked = await asyncio.to_thread(marked_processes, self.state_dir.run)
            return frozenset(process.name for process in marked)
        states = self.supervisor.states.items()
        return frozenset(name for name, state in states if state.pid is not None)

    def declare(self) -> None:
        """Run the instances of the plan."""
        self.supervisor.declare(*processes_of(self.state_dir, self.plan))

    def set_plan(self, plan: Plan) -> None:
        """Store a plan, and run its instances."""
        # Write first: if the disk is full, the next reconcile plans the change again.
        self.state_dir.write_plan(plan)
        self.plan = plan
        self.declare()

    def fall_asleep(self) -> bool:
        """Stop everything. The plan stays: the same instances run when it wakes."""
        if self.asleep:
            return False
        with disk_errors_block():
            self.state_dir.write_targets(())
        self.supervisor.declare()
        self.asleep = True
        return True

    def wake_up(self) -> None:
        """Start the instances that ran before."""
        if self.asleep:
            self.declare()
            self.asleep, self.declared = False, True

    def _names(self, *phases: Phase) -> set[str]:
        return {name for name, state in self.supervisor.states.items() if state.phase in phases}


def processes_of(state_dir: StateDir, plan: Plan) -> list[ProcessSpec]:
    """The processes of a plan."""
    return [_declared(state_dir, instance, plan) for instance in plan.instances]


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
