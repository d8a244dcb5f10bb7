"""Runs operations that take longer than a reconcile may: one task for each control plane.

A reconcile starts work that is due, and reports it. It never waits for the work, because a slow
store or API server of one control plane would delay all others. Every task ends with the provider.
Its work can be repeated, and finds its phase in objects, Secrets, stores or the files of a backend:
the next provider continues there, and nothing in this module has to survive.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Generic, TypeVar

from capelin.client import Conflict
from capelin.contract import ConditionSpec
from capelin.controller import Context, ObjectKey
from capelin.provider import Blocked

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backup.stores import StoreError
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Observed
from capelin_control_plane.keys.rotation import Progress, is_rolling

T = TypeVar("T")
_MANY: Final = 1 << 30


class Operation(StrEnum):
    """An operation, in the words of a condition: `waiting for the end of ...`."""

    ROTATION = "stages 1 and 2 of a rotation of CAs"
    CLIENTS = "stage 3 of a rotation of CAs"
    ENCRYPTION = "a change of encryption at rest"
    REWRITE = "a rewrite with another key of the KMS plugin"
    ROLLOUT = "a rollout of API servers"
    MEMBERS = "a change of etcd's members"
    BACKUP = "a backup"
    SPACE = "a defragmentation of etcd"
    RESTORE = "a restore"
    SLEEP = "a sleep"
    MOVE = "a move"
    PAUSE = "a pause"
    DELETION = "a deletion"


class Rule(StrEnum):
    """The effect of an operation in progress on a requested one."""

    PARALLEL = "runs at the same time"
    WAITS = "waits"
    ENDS = "ends it"
    """The one in progress stops. It continues or is repeated later, if it is still needed."""
    JOINS = "joins it"


_RULES: Final = {"=": Rule.PARALLEL, "w": Rule.WAITS, "e": Rule.ENDS, "+": Rule.JOINS}
"""Without a row and a column, a new operation cannot be imported."""
_TABLE: Final = """
            ROTATION CLIENTS ENCRYPTION REWRITE ROLLOUT MEMBERS BACKUP SPACE RESTORE SLEEP MOVE \
PAUSE DELETION
ROTATION    +        +       w          w       =       =       =      =     =       =     w    e e
CLIENTS     w        +       =          =       =       =       =      =     =       =     =    e e
ENCRYPTION  w        w       +          w       =       =       =      =     =       =     w    e e
REWRITE     =        =       e          +       =       =       =      =     e       e     e    e =
ROLLOUT     w        w       w          w       +       =       =      w     =       =     w    e e
MEMBERS     w        w       =          =       =       +       =      w     =       =     w    e e
BACKUP      e        =       e          =       =       =       +      w     =       e     e    e =
SPACE       =        =       =          =       =       =       w      +     =       e     e    e =
RESTORE     w        w       w          w       =       =       =      =     +       w     w    e e
SLEEP       w        w       w          w       w       w       w      w     e       +     w    e =
MOVE        w        w       w          w       =       =       =      =     e       e     +    = e
PAUSE       w        w       w          w       w       w       w      w     w       w     =    + w
DELETION    w        w       w          w       w       w       w      w     w       =     w    e +
"""


def read_table(table: str) -> Mapping[tuple[Operation, Operation], Rule]:
    """The rules of a table, by the operation in progress and the requested one.

    Raises:
        ValueError: an operation has no row or no column.
    """
    header, *rows = (line.split() for line in table.strip().splitlines())
    names = [operation.name for operation in Operation]
    if header != names or [row[0] for row in rows] != names:
        raise ValueError(f"the table has to have a row and a column for each of {names}")
    return {
        (Operation[name], requested): _RULES[cell]
        for name, *cells in rows
        for requested, cell in zip(Operation, cells, strict=True)
    }


RULES: Final = read_table(_TABLE)
_ORDER: Final = tuple(Operation)


def obstacle(requested: Operation, running: Collection[Operation]) -> Operation | None:
    """The operation whose end a requested one waits for. None if it may take its next step.

    Of two in progress that would wait for each other, the first one of `Operation` continues.
    """
    for other in _ORDER:
        if other not in running or RULES[other, requested] is not Rule.WAITS:
            continue
        is_mutual = requested in running and RULES[requested, other] is Rule.WAITS
        if not is_mutual or _ORDER.index(other) < _ORDER.index(requested):
            return other
    return None


def waiting_text(operation: Operation | None, readiness: str = "") -> str:
    """The obstacle in the words of a condition: an operation, or a component that is not ready."""
    return readiness if operation is None else f"the end of {operation}"


def in_progress(
    desired: ControlPlane, observed: Observed, *, is_moving: bool = False
) -> frozenset[Operation]:
    """The operations that the state of a control plane shows. Others have a task."""
    servers = observed.of("kube-apiserver")
    is_rolled_out = (
        len(servers) == desired.replicas
        and all(server.current for server in servers)
        and not observed.ending_servers
    )
    is_resized = observed.voters in {0, desired.etcd_replicas} and not observed.losses
    found = {
        Operation.ROTATION: is_rolling(desired.rotation),
        Operation.CLIENTS: Progress(desired.rotation).stage == "Waiting",
        Operation.ENCRYPTION: desired.encryption.changing,
        Operation.ROLLOUT: not (is_rolled_out or desired.asleep),
        Operation.MEMBERS: not desired.asleep
        and (not is_resized or (is_rolled_out and not observed.complete)),
        Operation.RESTORE: (desired.restore, observed.restore) != (None, None),
        Operation.SLEEP: desired.asleep,
        Operation.MOVE: is_moving,
    }
    return frozenset(operation for operation, is_running in found.items() if is_running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The limits of an operation, and how it reports failures."""

    name: str
    """As in the log: `a backup of one failed`."""
    excluded_as: Operation | None = None
    """Its row and its column in the table of exclusions, if it has them."""
    condition: str | None = None
    """The type of the condition that shows failures. Without one, only the log does."""
    reason: Reason | None = None
    """The reason of failures that have no other one."""
    own_reasons: bool = True
    """Whether failures of stores and settings keep their reasons."""
    expected: tuple[type[Exception], ...] = ()
    """Failures outside the provider. The log has the traceback of any other one."""
    warns: bool = False
    """Whether a new failure is also an event."""
    at_once: int = _MANY
    """The number of tasks that work at the same time."""
    at_once_of_namespace: int = _MANY
    """A tenant's slow server must not use all of them."""
    longest: timedelta | None = None
    """The limit of one task."""
    retry: timedelta = timedelta()
    """How long failed work waits."""
    is_check: bool = False
    """Whether it only observes: no reconcile follows, unless the result is another one."""
    repeats: bool = False
    """Whether the task itself repeats failed work. Otherwise a reconcile starts the next task."""

    def failure(self, error: Exception) -> ConditionSpec | None:
        """The condition that shows an error."""
        if self.condition is None or self.reason is None:
            return None
        reason, message = str(self.reason), str(error) or type(error).__name__
        if isinstance(error, (Blocked, StoreError)):
            # The general reason of stores names backups.
            is_general = not self.own_reasons or error.reason == Reason.BACKUP_FAILED
            reason = reason if is_general else error.reason
        elif isinstance(error, OSError) and isinstance(error, self.expected):
            message = error.strerror or message
        return ConditionSpec(self.condition, "False", reason, message)

    def waits_for(self, running: Collection[Operation], readiness: str = "") -> str:
        """The obstacle of its next step: an operation in progress, or a component. Or nothing."""
        other = None if self.excluded_as is None else obstacle(self.excluded_as, running)
        return waiting_text(other, readiness)


@dataclass(slots=True)
class Run(Generic[T]):
    """The last task of a control plane."""

    result: T
    begun: datetime
    settings: object = None
    """The settings that it began with. Others begin another task."""
    condition: ConditionSpec | None = None
    """The last failure, or the last report of an operation that reports its phases."""
    ended: datetime | None = None
    retry_at: datetime | None = None
    """When failed work is repeated."""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def is_due(self, now: datetime) -> bool:
        """Whether failed work is repeated now, if it failed."""
        return self.retry_at is None or self.retry_at <= now

    @property
    def is_running(self) -> bool:
        """Whether the task has not ended."""
        return self.task is not None and not self.task.done()


class Engine(Generic[T]):
    """Runs the tasks of one operation."""

    operation: Declaration

    def __init__(self, wake: Callable[[ObjectKey], None]) -> None:
        self.wake = wake
        self._runs: dict[ObjectKey, Run[T]] = {}
        limits = self.operation
        self._slots = asyncio.Semaphore(limits.at_once)
        self._slots_of: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(limits.at_once_of_namespace)
        )

    def last(self, key: ObjectKey) -> Run[T] | None:
        """A control plane's last task."""
        return self._runs.get(key)

    def is_running(self, key: ObjectKey) -> bool:
        """Whether a control plane's task has not ended."""
        run = self.last(key)
        return run is not None and run.is_running

    def start(
        self, ctx: Context, obj: CapelinControlPlane, run: Run[T], work: Callable[[], Awaitable[T]]
    ) -> Run[T]:
        """Start a task in place of the last one. Its work returns the next result."""
        self._stop(key_of(obj))
        self._runs[key_of(obj)] = run
        run.task = asyncio.create_task(self._run(ctx, obj, run, work))
        return run

    def forget(self, key: ObjectKey) -> None:
        """Stop a control plane's task."""
        self._stop(key)

    async def close(self) -> None:
        """Stop all tasks."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def report(self, key: ObjectKey, run: Run[T], condition: ConditionSpec | None) -> None:
        """Have the reconciler report another condition."""
        if run.condition != condition:
            run.condition = condition
            self.wake(key)

    def failed(self, ctx: Context, obj: CapelinControlPlane, run: Run[T], error: Exception) -> None:
        """Report the failure of a task."""
        condition, declared = self.operation.failure(error), self.operation
        if not isinstance(error, (Blocked, StoreError, *declared.expected)):
            ctx.log.error("%s of %s failed", declared.name, obj.name, exc_info=error)
        elif condition is None:
            ctx.log.info("%s of %s failed: %s", declared.name, obj.name, error)
        if declared.warns and condition is not None and condition != run.condition:
            ctx.event(obj, "Warning", condition.reason, condition.message)
        run.retry_at = ctx.now() + declared.retry
        self.report(key_of(obj), run, condition)

    async def _run(
        self, ctx: Context, obj: CapelinControlPlane, run: Run[T], work: Callable[[], Awaitable[T]]
    ) -> None:
        declared, key = self.operation, key_of(obj)
        seconds = None if declared.longest is None else declared.longest.total_seconds()
        wait = declared.retry.total_seconds()
        while True:
            before = run.result
            try:
                async with self._slots_of[key.namespace], self._slots, asyncio.timeout(seconds):
                    run.result = await work()
                run.retry_at = None
                if not declared.repeats:
                    run.condition = None
                break
            except Conflict as error:
                # Often with this provider's own status.
                if not declared.repeats:
                    self.failed(ctx, obj, run, error)
                    break
                await asyncio.sleep(0)
            except Exception as error:  # noqa: BLE001 - it is reported, and the work is repeated
                self.failed(ctx, obj, run, error)
                if not declared.repeats:
                    break
                await asyncio.sleep(wait)
        run.ended = ctx.now()
        # Work that repeats itself has reported what it did.
        if not declared.repeats and (not declared.is_check or run.result != before):
            self.wake(key)

    def _stop(self, key: ObjectKey) -> None:
        run = self._runs.pop(key, None)
        if run is not None and run.task is not None:
            run.task.cancel()


def key_of(obj: CapelinControlPlane) -> ObjectKey:
    """The name of a control plane."""
    return ObjectKey(obj.namespace or "", obj.name)
