"""Declarations of a provider: the watches and permissions of a reconciler, and its step.

The memory and the permissions of watches depend on the requested content. So a watch requests only
metadata, unless a mapper needs the whole object. It never requests the content of Secrets.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, get_args, get_origin

from capelin.api import BaseObject, ObjectMeta, Resource
from capelin.client import Unreadable, UnreadableObject, reason_of
from capelin.controller.context import Context
from capelin.controller.queue import ObjectKey, Result

KindT = TypeVar("KindT", bound=BaseObject)
ObjectT = TypeVar("ObjectT", bound=BaseObject)

Labels = Mapping[str, str | None]
"""Labels that an object must have. `None` requires the label with any value."""


@dataclass(frozen=True, slots=True)
class For(Generic[KindT]):
    """The reconciler's own kind. Each object of it is a key.

    The reconciler may read the object, and patch it and its status. With `status_only` it may patch
    only the status, and so cannot add a finalizer. For `when_changed`, see `Watches`.
    """

    kind: type[KindT]
    labels: Labels = field(default_factory=dict[str, str | None])
    status_only: bool = False
    when_changed: Callable[[KindT], Hashable] | None = None


@dataclass(frozen=True, slots=True)
class Owns(Generic[KindT]):
    """A kind that the reconciler creates. Its events concern the owner.

    The reconciler may read, create and patch it, and with `deletes` delete it. For `optional` and
    `when_changed`, see `Watches`.
    """

    kind: type[KindT]
    labels: Labels = field(default_factory=dict[str, str | None])
    deletes: bool = False
    optional: bool = False
    when_changed: Callable[[KindT], Hashable] | None = None


@dataclass(frozen=True, slots=True)
class Watches(Generic[KindT]):
    """A kind whose events concern the keys that `to` returns.

    `to` is a function of the object. If it must query the API server, for example for the machines
    of a Cluster, it is a coroutine function of the context and the object. With `metadata_only`,
    and always for Secrets, the object has only its metadata.

    The manager waits until a kind is installed. It does not wait for an `optional` kind, which it
    starts to watch after its installation, and which may be removed again.

    An event also concerns the keys that the object concerned before, for example its former owner.

    With `when_changed`, an event counts only if this value of the object differs from that of its
    previous event. The first event of an object, its deletion and new owners always count. The
    function gets the same object as `to`, and that of `For` and `Owns` only the metadata.
    """

    kind: type[KindT]
    to: (
        Callable[[KindT], Iterable[ObjectKey]]
        | Callable[[Context, KindT], Awaitable[Iterable[ObjectKey]]]
    )
    labels: Labels = field(default_factory=dict[str, str | None])
    metadata_only: bool = False
    optional: bool = False
    when_changed: Callable[[KindT], Hashable] | None = None


Watch = For[Any] | Owns[Any] | Watches[Any]


@dataclass(frozen=True, slots=True)
class Permission:
    """Additional permissions of a reconciler, besides those that its watches imply."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()


class Reconciler(ABC, Generic[ObjectT]):
    """Moves objects of one kind towards their spec, a step at a time.

    It never runs twice at the same time for one object. It receives the object's current state, or
    with `cached_reads` the state that the watch has delivered, even during deletion. It must handle
    a call at any time for any reason.
    """

    watches: ClassVar[tuple[Watch, ...]]
    """The watches: `For` its own kind, `Owns` for kinds that it creates, `Watches` for others."""

    permissions: ClassVar[tuple[Permission, ...]] = ()
    """Additional permissions, besides those that the watches imply."""

    cached_reads: ClassVar[bool] = False
    """Whether the manager reads the object from its cache where possible: see `Context.cached`. It
    always reads an object under deletion from the API server."""

    @abstractmethod
    def reconcile(self, ctx: Context, obj: ObjectT, /) -> Awaitable[Result] | Result:
        """Read, decide, act, patch the status. If it raises, the queue retries it with backoff.

        A coroutine function runs in the manager's event loop and must not block it. A plain
        function runs in a thread, where `ctx.wait` runs a coroutine of the client.
        """

    async def on_missing(self, ctx: Context, key: ObjectKey, /) -> None:
        """Clean up after an object that no longer exists, or is no longer ours.

        The manager misses objects that are deleted while it is down: use a finalizer for cleanup
        that must always happen.
        """

    def group(self, obj: ObjectT, /) -> Hashable | None:  # noqa: ARG002
        """The group of an object, which has only its metadata here.

        At most a third of the workers reconcile one group at the same time, and another third is
        not for groups that were slow. Group objects that depend on the same server, so that a slow
        one holds up its own objects only.
        """
        return None

    def lifespan(self, ctx: Context, /) -> AbstractAsyncContextManager[object]:
        """Resources of the reconciler, from before its first step until after its last.

        Override it with an `@asynccontextmanager`. With leader election, only the leader enters it.
        """
        del ctx
        return nullcontext()

    def health(self) -> str | None:
        """The problem with background work of the reconciler, which fails /healthz, or `None`."""
        return None

    def wake(self, key: ObjectKey) -> None:
        """Request a reconcile after an event outside the cluster."""
        if self._add is not None:
            self._add(key)

    def connect(self, add: Callable[[ObjectKey], None]) -> None:
        """Connect `wake` to a queue. The manager calls this."""
        self._add = add

    _add: Callable[[ObjectKey], None] | None = None

    @property
    def main_watch(self) -> For[ObjectT]:
        (main,) = (watch for watch in self.watches if isinstance(watch, For))
        return cast("For[ObjectT]", main)

    @property
    def name(self) -> str:
        """The name in logs and metrics: its kind in lowercase, like in controller-runtime."""
        return self.main_watch.kind.resource.kind.lower()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        kind = _kind_of(cls)
        if "watches" in cls.__dict__:
            _check_watches(cls, kind)
        elif kind is not None and "reconcile" in cls.__dict__ and not hasattr(cls, "watches"):
            raise TypeError(f"{cls.__name__} has no watches: add watches = (For({kind.__name__}),)")


def _kind_of(cls: type[Reconciler[Any]]) -> type[BaseObject] | None:
    """The kind in `class Schools(Reconciler[School])`, if the class names one."""
    for base in getattr(cls, "__orig_bases__", ()):
        origin, arguments = get_origin(base), get_args(base)
        if isinstance(origin, type) and issubclass(origin, Reconciler) and arguments:
            return arguments[0] if isinstance(arguments[0], type) else None
    return None


def _check_watches(cls: type[Reconciler[Any]], kind: type[BaseObject] | None) -> None:
    name = cls.__name__
    watches: Any = cls.watches
    if not isinstance(watches, tuple):
        raise TypeError(f"{name}.watches is not a tuple: write watches = (For(...), ...)")
    for watch in cast("tuple[Any, ...]", watches):
        if not isinstance(watch, For | Owns | Watches):
            raise TypeError(f"{name}.watches has {watch!r}: it takes only For, Owns and Watches")
        watched: Any = cast("Watch", watch).kind
        if not (isinstance(watched, type) and hasattr(watched, "resource")):
            raise TypeError(f"{name}.watches has {watched!r}, which is not a kind: add @kind(...)")
    main = [watch.kind for watch in cls.watches if isinstance(watch, For)]
    if len(main) != 1:
        raise TypeError(f"{name}.watches has to name its own kind with one For(...)")
    if kind is not None and not issubclass(main[0], kind):
        raise TypeError(
            f"{name} reconciles {kind.__name__}, but its watches have For({main[0].__name__})"
        )


class KeyQueue(Protocol):
    """Receives the events of a watch, in the manager's event loop."""

    def changed(self, watch: Watch, body: Mapping[str, Any], *, deleted: bool) -> None: ...

    def listed(self, watch: Watch, uids: AbstractSet[str]) -> None: ...

    def retry_soon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Subscription:
    """A declared watch, and the receiver of its events."""

    watch: Watch
    queue: KeyQueue


def selector(labels: Labels) -> str:
    """The labels as Kubernetes' label selector."""
    return ",".join(
        name if value is None else f"{name}={value}" for name, value in sorted(labels.items())
    )


def selects(labels: Labels, found: Mapping[str, str]) -> bool:
    """Whether an object with the labels `found` matches."""
    return all(name in found and value in {None, found[name]} for name, value in labels.items())


def looks_inside(watch: Watch) -> bool:
    """Whether a watch needs whole objects instead of only their metadata."""
    secret = (watch.kind.resource.group, watch.kind.resource.plural) == ("", "secrets")
    return isinstance(watch, Watches) and not watch.metadata_only and not secret


UNREADABLE = "unreadable"
"""The field with the reason why the rest of an unreadable object is missing."""


def concerned(
    watch: Watch, kind: Resource, body: Mapping[str, Any], ctx: Context | None = None
) -> Iterable[ObjectKey] | Awaitable[Iterable[ObjectKey]]:
    """The keys of the reconciler's `kind` that an event about the object `body` concerns.

    Raises:
        Unreadable: A mapper needs the whole object, which is not readable.
    """
    metadata = cast("Mapping[str, Any]", body["metadata"])
    if not selects(watch.labels, metadata.get("labels") or {}):
        return []
    match watch:
        case For():
            return [ObjectKey(metadata.get("namespace") or "", metadata["name"])]
        case Owns():
            namespace = metadata.get("namespace") or "" if kind.namespaced else ""
            return [
                ObjectKey(namespace, owner["name"])
                for owner in metadata.get("ownerReferences") or ()
                if owner["kind"] == kind.kind
                and owner["apiVersion"].rpartition("/")[0] == kind.group
            ]
        case Watches():
            to: Callable[..., Any] = watch.to
            obj = object_in(watch, body)
            return to(ctx, obj) if iscoroutinefunction(to) else list(to(obj))


def group_of(reconciler: Reconciler[Any], body: Mapping[str, Any]) -> Hashable | None:
    """The group of an object of the reconciler's kind, from an event's body."""
    kind = reconciler.main_watch.kind
    return reconciler.group(kind.model_construct(metadata=ObjectMeta.read(body["metadata"])))


def object_in(watch: Watch, body: Mapping[str, Any]) -> Any:
    """The object of an event, with only its metadata unless the watch looks inside.

    Raises:
        Unreadable: The watch looks inside, and the object is not readable.
    """
    if looks_inside(watch):
        try:
            if UNREADABLE in body:
                raise ValueError(body[UNREADABLE])  # noqa: TRY301 - handled like any other reason
            return watch.kind.read(body)
        except ValueError as error:
            resource, reason = watch.kind.resource, reason_of(error)
            unreadable = UnreadableObject.of(resource, body["metadata"], reason)
            raise Unreadable(f"{unreadable} cannot be read: {reason}", unreadable) from None
    return watch.kind.model_construct(metadata=ObjectMeta.read(body["metadata"]))
