"""The framework of a provider's reconcile: the same order of steps for every kind of Cluster API.

read -> Cluster -> paused -> deletion -> owner -> waiting -> finalizer -> reconcile_normal -> status
"""

import inspect
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast, get_args

from capelin.api import BaseObject, Condition, Model, Object, Template
from capelin.api.capi import Cluster, Machine
from capelin.client import Client, Conflict, NotFound, Unreachable, WorkloadClients
from capelin.contract import DELETING, READY, ConditionSpec, cluster_of, named_by, owner_of, paused
from capelin.controller import (
    After,
    Context,
    Done,
    For,
    ObjectKey,
    Permission,
    Reconciler,
    Result,
    Watch,
    Watches,
)
from capelin.provider.blocked import Blocked, FrameReason, describe, root_cause
from capelin.provider.changes import Change, changes, transitions
from capelin.provider.context import ProviderContext, StatusDraft
from capelin.provider.fields import template_of

KindT = TypeVar("KindT", bound=Object[Any, Any])

_NOT_WRITTEN = "The status of %s cannot be written: %s"


@dataclass(frozen=True, slots=True)
class Paused:
    """Ignore the object."""

    condition: ConditionSpec


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object's resources."""


@dataclass(frozen=True, slots=True)
class Released:
    """The object is under deletion, and we no longer hold a finalizer."""


@dataclass(frozen=True, slots=True)
class Proceed:
    """Reconcile the object."""


Step = Paused | Delete | Released | Proceed


def gate(obj: BaseObject, cluster: Cluster | None, finalizer: str | None) -> Step:
    """The step for an object: a pause comes before deletion, and deletion before all else."""
    pause = paused(obj, cluster)
    if pause.status == "True":
        return Paused(pause)
    if obj.metadata.deletion_timestamp is None:
        return Proceed()
    return Delete() if finalizer in obj.metadata.finalizers else Released()


class ProviderReconciler(Reconciler[KindT], Generic[KindT]):
    """Reconciles one kind of a Cluster API provider, in the order that all of them share.

    A subclass names its kind once, `class Disks(ProviderReconciler[Disk])`. It has
    `reconcile_normal` and, if it has resources to delete, `reconcile_delete`. Either may be a plain
    function, which then runs in a thread. It runs after these conditions hold: the Cluster exists
    and is not paused, the owner exists, nothing is missing, and the object has the finalizer. The
    status is sent once at the end, whatever happened. `Blocked` becomes a condition. So does any
    other exception, which is also logged and retried.
    """

    kind: ClassVar[type[Any]]
    """From the generic argument."""
    owner_kind: ClassVar[type[BaseObject]] = Cluster
    """The kind of the object's owner."""
    finalizer: ClassVar[str | None]
    """Default: `GROUP/KIND` in lowercase if `reconcile_delete` is overridden."""
    watches: ClassVar[tuple[Watch, ...]]
    """Watches besides the kind and its owner. A watch of the owner replaces the default one."""
    permissions: ClassVar[tuple[Permission, ...]] = (
        Permission("cluster.x-k8s.io", ("clusters",), ("get",)),
    )
    """Permissions besides those that the watches and the base classes imply."""

    context_type: ClassVar[type[ProviderContext[Any]]] = ProviderContext
    spec_base: ClassVar[type[Model]] = Model
    status_base: ClassVar[type[Model]] = Model
    ready_condition: ClassVar[str] = READY
    has_template: ClassVar[bool] = False
    """Whether its contract requires a kind `...Template` for ClusterClasses."""
    milestone: ClassVar[str] = "Provisioned"
    """The reason of the event that reports the object's creation."""
    paused_retry_seconds: ClassVar[float | None] = None
    """The interval for checking a paused object, if no watch reports the end of the pause."""

    cached_reads: ClassVar[bool] = True
    """Whether to read the object, its Cluster and its owner from the manager's cache if possible. A
    deletion always reads the object and its Cluster from the API server."""

    _workloads: WorkloadClients | None = None

    # Methods that providers write

    @abstractmethod
    def reconcile_normal(self, ctx: Any, obj: KindT, /) -> Result | Awaitable[Result]:
        """Observe, decide, apply, and report with `ctx.set_status` and the like.

        Raises:
            Blocked: The reconcile cannot continue now.
        """

    def reconcile_delete(self, ctx: Any, obj: KindT, /) -> Result | Awaitable[Result]:  # noqa: ARG002
        """Delete the object's resources. `Done` removes the finalizer, `After` calls this again."""
        return Done()

    # Methods that providers may override

    @asynccontextmanager
    async def lifespan(self, ctx: Context, /) -> AsyncGenerator[object]:
        """Keeps clients of workload clusters while the manager runs. Overrides call `super()`."""
        self._workloads = WorkloadClients(ctx.client)
        try:
            yield
        finally:
            await self._workloads.close()
            self._workloads = None

    def ignores(self, obj: KindT) -> bool:  # noqa: ARG002
        """Whether another controller manages the object."""
        return False

    async def find_cluster(self, client: Client, obj: KindT) -> Cluster | None:
        return await cluster_of(client, obj)

    async def find_owner(
        self, client: Client, obj: KindT, cluster: Cluster | None
    ) -> BaseObject | None:
        """The owner of an object. Not called during deletion."""
        if self.owner_kind is Cluster:
            return cluster
        return await owner_of(client, obj, self.owner_kind)

    def waiting_for(self, obj: KindT, cluster: Cluster | None, owner: Any) -> Blocked | None:
        """The first missing requirement, if any. Pure."""
        if cluster is None or owner is None:
            return self._no_owner(obj, owner)
        return None

    def base_status(self, obj: KindT) -> Model:
        """The initial status: the one that was read, plus constant fields."""
        return obj.status or _field_type(type(obj), "status")()

    def is_reported(self, obj: KindT, change: Change) -> bool:  # noqa: ARG002
        """Whether a change becomes an event. An event is a write, also for a thousand machines."""
        return True

    async def on_paused(self, ctx: Any, obj: KindT, /) -> None:
        """Stop background work on a paused object. The default does nothing."""

    # The framework

    async def reconcile(self, ctx: Context, obj: KindT, /) -> Result:
        """Run one step. Providers override `reconcile_normal` instead."""
        if self.ignores(obj):
            return Done()
        cluster = await self.find_cluster(self._reader(ctx, obj), obj)
        draft = StatusDraft(obj, self.base_status(obj))
        was_made = self.is_initialized(obj.status)
        step = gate(obj, cluster, self.finalizer)
        if isinstance(step, Paused):
            return await self._pause(ctx, obj, cluster, step, draft)
        pause = paused(obj, cluster)
        draft.set_conditions(pause)
        if hasattr(draft.status, "observed_generation"):
            draft.set_fields(observed_generation=obj.metadata.generation)
        try:
            result = await self._take(step, ctx, obj, cluster, draft)
            if step == Delete() and isinstance(result, Done):
                await ctx.remove_finalizer(obj, cast("str", self.finalizer))
            else:
                await self._send(ctx, draft)
        except Conflict:
            # Another controller wrote at the same time: the next attempt reads its object.
            raise
        except Exception as error:
            cause = root_cause(error)
            await self._explain(ctx, obj, draft, cause)
            _log_transitions(ctx, obj, draft)
            if not isinstance(cause, Blocked):
                raise
            return Done() if cause.retry_seconds is None else After(cause.retry_seconds)
        _log_transitions(ctx, obj, draft)
        self._report(ctx, obj, draft, was_made=was_made)
        return result

    def _reader(self, ctx: Context, obj: KindT) -> Client:
        # A deletion cannot be undone: do not miss a pause that was not delivered yet.
        is_deleting = obj.metadata.deletion_timestamp is not None
        return ctx.cached if self.cached_reads and not is_deleting else ctx.client

    def _report(self, ctx: Context, obj: KindT, draft: StatusDraft, *, was_made: bool) -> None:
        status: Any = obj.status
        made = [Change("Normal", self.milestone, "it was created")]
        after: list[Condition] = getattr(status, "conditions", [])
        for change in (
            *(made if self.is_initialized(status) and not was_made else ()),
            *changes(draft.before, after, self.ready_condition),
        ):
            if self.is_reported(obj, change):
                ctx.event(obj, change.type, change.reason, change.message)

    async def _take(
        self,
        step: Delete | Released | Proceed,
        ctx: Context,
        obj: KindT,
        cluster: Cluster | None,
        draft: StatusDraft,
    ) -> Result:
        match step:
            case Released():
                holders = ", ".join(obj.metadata.finalizers)
                message = f"waiting for the finalizers of other controllers: {holders}"
                draft.set_conditions(ConditionSpec(DELETING, "True", DELETING, message))
                return Done()
            case Delete():
                draft.set_conditions(ConditionSpec(DELETING, "True", DELETING))
                work = self._context(ctx, cluster, None, draft)
                return await _called(self.reconcile_delete, work, obj)
            case Proceed():
                return await self._proceed(ctx, obj, cluster, draft)

    async def _pause(
        self,
        ctx: Context,
        obj: KindT,
        cluster: Cluster | None,
        step: Paused,
        draft: StatusDraft,
    ) -> Result:
        await self.on_paused(self._context(ctx, cluster, None, draft), obj)
        draft.set_conditions(step.condition)
        await self._send(ctx, draft)
        return Done() if self.paused_retry_seconds is None else After(self.paused_retry_seconds)

    async def _proceed(
        self, ctx: Context, obj: KindT, cluster: Cluster | None, draft: StatusDraft
    ) -> Result:
        draft.set_conditions(ConditionSpec(DELETING, "False", "NotDeleting"))
        owner = await self.find_owner(self._reader(ctx, obj), obj, cluster)
        missing = self.waiting_for(obj, cluster, owner)
        if missing is not None:
            raise _Waiting(missing)
        if self.finalizer is not None:
            await ctx.add_finalizer(obj, self.finalizer)
        work = self._context(ctx, cluster, owner, draft)
        result = await _called(self.reconcile_normal, work, obj)
        if not draft.says(self.ready_condition):
            draft.set_conditions(self.readiness(draft.status))
        return result

    def readiness(self, status: Any) -> ConditionSpec:  # noqa: ARG002
        """The summary condition of an object, if `reconcile_normal` did not set one."""
        return ConditionSpec(self.ready_condition, "True", self.ready_condition)

    async def _explain(
        self, ctx: Context, obj: KindT, draft: StatusDraft, cause: BaseException
    ) -> None:
        """Write a condition that explains why the reconcile stopped, with one event."""
        spec = self._explanation(obj, draft, cause)
        before = draft.before.get(spec.type)
        is_new = before is None or (before.reason, before.message) != (spec.reason, spec.message)
        if is_new and not isinstance(cause, _Waiting):
            ctx.event(obj, "Warning", spec.reason, spec.message)
        draft.set_conditions(spec)
        try:
            await self._send(ctx, draft)
        except (Conflict, Unreachable) as error:
            ctx.log.warning(_NOT_WRITTEN, obj, describe(error))
        except Exception:  # noqa: BLE001 - the cause is the failure to raise
            draft.drop_changes()
            draft.set_conditions(self._explanation(obj, draft, cause))
            await self._send_explanation(ctx, obj, draft)

    def _explanation(self, obj: KindT, draft: StatusDraft, cause: BaseException) -> ConditionSpec:
        if isinstance(cause, Blocked):
            reason, message = cause.reason, str(cause)
        else:
            reason, message = FrameReason.RECONCILE_FAILED, describe(cause)
        if obj.metadata.deletion_timestamp is not None:
            return ConditionSpec(DELETING, "True", reason, message)
        # Without an answer of the workload cluster, the object's state cannot be observed.
        unknown = isinstance(cause.__cause__, Unreachable) or not isinstance(cause, Blocked)
        status = self.blocked_status(draft.status, failed=unknown)
        return ConditionSpec(self.ready_condition, status, reason, message)

    def blocked_status(self, status: Any, *, failed: bool) -> Literal["False", "Unknown"]:
        """The status of the ready condition after a blocked or failed reconcile."""
        return "Unknown" if failed and self.is_initialized(status) else "False"

    def is_initialized(self, status: Any) -> bool:
        """Whether the object has been ready before."""
        initialization = getattr(status, "initialization", None)
        return bool(getattr(initialization, "provisioned", None))

    async def _send(self, ctx: Context, draft: StatusDraft) -> None:
        try:
            await draft.send(ctx.client, ctx.now())
        except NotFound:
            ctx.log.debug("The object is gone, and its status with it")

    async def _send_explanation(self, ctx: Context, obj: KindT, draft: StatusDraft) -> None:
        """Write the condition without the rest of a status that the API server rejected."""
        try:
            await self._send(ctx, draft)
        except Exception as error:  # noqa: BLE001 - the cause is the failure to raise
            ctx.log.warning(_NOT_WRITTEN, obj, describe(error))

    def _context(
        self, ctx: Context, cluster: Cluster | None, owner: Any, draft: StatusDraft
    ) -> ProviderContext[Any]:
        if self._workloads is None:
            self._workloads = WorkloadClients(ctx.client)
        return self.context_type.of(
            ctx, cluster=cluster, owner=owner, draft=draft, workloads=self._workloads
        )

    def _no_owner(self, obj: KindT, owner: object) -> Blocked:
        name = "Cluster" if owner is not None else self.owner_kind.resource.kind
        message = f"no {name} owns it yet"
        hint = f"refer to this {obj.resource.kind} in one"
        return Blocked(FrameReason.WAITING_FOR_OWNER, message, hint, retry_seconds=None)

    # The class

    @classmethod
    def keys_of(cls, owner: Any) -> Iterable[ObjectKey]:
        """The objects that an event about an owner concerns."""
        name = named_by(owner.spec.infrastructure_ref, cls.kind)
        return [] if name is None else [ObjectKey(owner.namespace or "", name)]

    def __init_subclass__(cls, **keywords: Any) -> None:
        argument = _kind_argument(cls)
        if not isinstance(argument, TypeVar):
            if argument is not None:
                cls.kind = _checked(cls, argument)
            elif not hasattr(cls, "kind"):
                base = cls.__bases__[0].__name__
                raise TypeError(f"{cls.__name__} has to name its kind: {base}[...]")
            cls._derive()
        super().__init_subclass__(**keywords)

    @classmethod
    def _derive(cls) -> None:
        resource = cls.kind.resource
        watches: tuple[Watch, ...] = getattr(cls, "watches", ())
        declared = tuple(w for w in watches if not isinstance(w, For) or w.kind is not cls.kind)
        own = [watch for watch in watches if watch not in declared] or [For(cls.kind)]
        if any(isinstance(watch, For) for watch in declared):
            raise TypeError(f"{cls.__name__} is for {resource.kind}: remove the other For(...)")
        mapped = any(isinstance(w, Watches) and w.kind is cls.owner_kind for w in declared)
        owner = () if mapped else (Watches(cls.owner_kind, to=cls.keys_of),)
        cls.watches = (*own, *declared, *owner)
        inherited = [
            permission
            for base in cls.__mro__
            for permission in base.__dict__.get("permissions", ())
        ]
        cls.permissions = tuple(dict.fromkeys(inherited))
        if "finalizer" not in cls.__dict__ and not hasattr(cls, "finalizer"):
            usual: object = ProviderReconciler[Any].reconcile_delete
            removes = cls.reconcile_delete is not usual
            cls.finalizer = f"{resource.group}/{resource.kind.lower()}" if removes else None
        if cls.finalizer is not None and any(w.status_only for w in own if isinstance(w, For)):
            raise TypeError(f"{cls.__name__} has a finalizer, so it cannot be status_only")


def kinds_of(
    reconcilers: Sequence[type[Reconciler[Any]]], others: Sequence[type[BaseObject]]
) -> list[tuple[type[BaseObject], ...]]:
    """The kinds of a provider, each with its template if a contract requires one.

    Each has all its versions. The last one, which the API server stores, is the reconciler's.
    """
    kinds: dict[str, list[type[BaseObject]]] = {}
    for kind in others:
        kinds.setdefault(kind.resource.kind, []).append(kind)
    stored: dict[str, type[BaseObject]] = {}
    for reconciler in reconcilers:
        kind = _kind_of(reconciler)
        name = kind.resource.kind
        versions = kinds.setdefault(name, [])
        same = {other for other in versions if other.resource.version == kind.resource.version}
        if (same | {stored.setdefault(name, kind)}) - {kind}:
            raise ValueError(
                f"kinds has a {name} that is not the one of {reconciler.__name__} "
                f"({kind.resource.version}): remove it, because a provider has the kinds of its "
                f"reconcilers"
            )
        kinds[name] = [*(version for version in versions if version is not kind), kind]
        twin = f"{name}Template"
        if issubclass(reconciler, ProviderReconciler) and reconciler.has_template:
            made = cast("list[type[Any]]", kinds[name])
            kinds[twin] = kinds.get(twin) or [template_of(version) for version in made]
    return [tuple(versions) for versions in kinds.values()]


def contract_kinds(
    reconcilers: Sequence[type[Reconciler[Any]]], kinds: Sequence[type[BaseObject]]
) -> list[type[BaseObject]]:
    """The kinds that a topology can own: those of a contract, and their templates."""
    names = {
        f"{_kind_of(reconciler).resource.kind}{suffix}"
        for reconciler in reconcilers
        if issubclass(reconciler, ProviderReconciler)
        for suffix in ("", "Template")
    }
    return [kind for kind in kinds if kind.resource.kind in names]


def machine_templates(
    reconcilers: Sequence[type[Reconciler[Any]]], kinds: Sequence[type[BaseObject]]
) -> list[type[Template[Any]]]:
    """The templates that must not change, because their objects would not follow."""
    names = {
        f"{_kind_of(reconciler).resource.kind}Template"
        for reconciler in reconcilers
        if issubclass(reconciler, ProviderReconciler) and reconciler.owner_kind is Machine
    }
    return [cast("type[Template[Any]]", kind) for kind in kinds if kind.resource.kind in names]


def _kind_of(reconciler: type[Reconciler[Any]]) -> type[Any]:
    (main,) = (watch for watch in reconciler.watches if isinstance(watch, For))
    return main.kind


class _Waiting(Blocked):
    """A requirement that appears by itself is missing: no reason for a warning."""

    def __init__(self, missing: Blocked) -> None:
        super().__init__(
            missing.reason, missing.message, missing.hint, retry_seconds=missing.retry_seconds
        )


async def _called(step: Callable[..., Any], ctx: ProviderContext[Any], obj: Any) -> Result:
    if inspect.iscoroutinefunction(step):
        result: Any = await step(ctx, obj)
    else:
        result = await ctx.call(step, ctx, obj)
    if not isinstance(result, Done | After):
        name = getattr(step, "__qualname__", step)
        raise TypeError(f"{name} returned {result} instead of Done() or After(seconds)")
    return result


def _kind_argument(cls: type[Any]) -> object | None:
    """The generic argument with which a class inherits from a reconciler, if there is one."""
    for base in cls.__dict__.get("__orig_bases__", ()):
        origin = getattr(base, "__origin__", None)
        if isinstance(origin, type) and issubclass(origin, ProviderReconciler):
            (argument, *_) = get_args(base)
            return argument
    return None


def _checked(cls: type[ProviderReconciler[Any]], kind: object) -> type[Any]:
    """The kind of a reconciler, if it fits the reconciler's contract."""
    if not (
        isinstance(kind, type)
        and issubclass(kind, Object)
        and hasattr(cast("Any", kind), "resource")
    ):
        raise TypeError(f"{cls.__name__}[{kind}]: use a class with @kind")
    found = cast("type[Any]", kind)
    for field, base in (("spec", cls.spec_base), ("status", cls.status_base)):
        part = _field_type(found, field)
        if not issubclass(part, base):
            raise TypeError(
                f"{cls.__name__}: the {field} of {found.__name__} has to inherit from "
                f"{base.__name__} of capelin.provider, and {part.__name__} does not"
            )
    if cls.has_template and not found.definition.contracts:
        raise TypeError(
            f"{cls.__name__}: {found.__name__} names no contract version: "
            f"use @kind(..., definition=definition())"
        )
    return found


def _field_type(kind: type[Any], field: str) -> type[Model]:
    annotation = kind.model_fields[field].annotation
    return next(
        argument for argument in (*get_args(annotation), annotation) if argument is not type(None)
    )


def _log_transitions(ctx: Context, obj: Object[Any, Any], draft: StatusDraft) -> None:
    after: list[Condition] = getattr(obj.status, "conditions", [])
    if phrases := transitions(draft.before, after):
        ctx.log.info("%s", "; ".join(phrases))
