"""What a provider declares: the watches and permissions of a reconciler, and its step.

Watching costs memory and permissions in proportion to what is asked for. So everything is watched
by its metadata alone, except what a mapper has to look into, and Secrets are never looked into.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
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
"""Labels that an object must have; `None` asks for the label and takes any value."""


@dataclass(frozen=True, slots=True)
class For(Generic[KindT]):
    """The kind that a reconciler is for: each object of it is a key.

    The reconciler may read and patch it and its status; with `status_only` it may patch nothing but
    the status, and so cannot add a finalizer.
    """

    kind: type[KindT]
    labels: Labels = field(default_factory=dict[str, str | None])
    status_only: bool = False


@dataclass(frozen=True, slots=True)
class Owns(Generic[KindT]):
    """A kind that the reconciler creates: its events concern the owner.

    The reconciler may read, create and patch it, and with `deletes` delete it. `optional` is as in
    `Watches`.
    """

    kind: type[KindT]
    labels: Labels = field(default_factory=dict[str, str | None])
    deletes: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Watches(Generic[KindT]):
    """A kind whose events concern the keys that `to` returns.

    `to` is a function of the object, or a coroutine function of the context and the object: one
    that has to ask the API server, as for the machines of a Cluster. With `metadata_only`, and
    always for Secrets, the object has nothing but its metadata.

    The manager waits for a kind that is not installed yet. It does not wait for an `optional` one:
    that is watched from when it is installed, and may be removed again.
    """

    kind: type[KindT]
    to: (
        Callable[[KindT], Iterable[ObjectKey]]
        | Callable[[Context, KindT], Awaitable[Iterable[ObjectKey]]]
    )
    labels: Labels = field(default_factory=dict[str, str | None])
    metadata_only: bool = False
    optional: bool = False


Watch = For[Any] | Owns[Any] | Watches[Any]


@dataclass(frozen=True, slots=True)
class Permission:
    """What a reconciler may do beyond what its watches imply."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()


class Reconciler(ABC, Generic[ObjectT]):
    """Moves objects of one kind towards their spec, a step at a time.

    It never runs twice at once for the same object. It gets the object as the API server has it
    now, being deleted or not, and must be ready to be called at any time for any reason.
    """

    watches: ClassVar[tuple[Watch, ...]]
    """What it looks at: `For` its own kind, `Owns` what it creates, `Watches` the rest."""

    permissions: ClassVar[tuple[Permission, ...]] = ()
    """What it may do beyond what the watches imply."""

    @abstractmethod
    def reconcile(self, ctx: Context, obj: ObjectT, /) -> Awaitable[Result] | Result:
        """Read, decide, act, patch the status; or raise, to be called again after a while.

        A coroutine function runs in the manager's event loop and must not block it. A plain
        function runs in a thread; there, `ctx.wait` runs a coroutine of the client.
        """

    async def on_missing(self, ctx: Context, key: ObjectKey, /) -> None:
        """Clean up after an object that is no longer there, or no longer ours.

        Nothing calls this for an object that is deleted while no manager runs: use a finalizer for
        what must be cleaned up in any case.
        """

    def group(self, obj: ObjectT, /) -> Hashable | None:  # noqa: ARG002
        """The group of an object, of which there is nothing but its metadata.

        At most a third of the workers reconcile one group at the same time, and another third is
        not for groups that were slow. Group objects that depend on the same server, so that a slow
        one holds up its own objects only.
        """
        return None

    def lifespan(self, ctx: Context, /) -> AbstractAsyncContextManager[object]:
        """What the reconciler needs while it works, from before its first step to after its last.

        Override it with an `@asynccontextmanager`. With leader election it is entered by the
        leader only.
        """
        del ctx
        return nullcontext()

    def health(self) -> str | None:
        """What is wrong with what the reconciler runs beside its steps; /healthz says it."""
        return None

    def wake(self, key: ObjectKey) -> None:
        """Ask for a reconcile, because of something that happened outside the cluster."""
        if self._add is not None:
            self._add(key)

    def connect(self, add: Callable[[ObjectKey], None]) -> None:
        """Where `wake` leads from now on; the manager calls this."""
        self._add = add

    _add: Callable[[ObjectKey], None] | None = None

    @property
    def main_watch(self) -> For[ObjectT]:
        (main,) = (watch for watch in self.watches if isinstance(watch, For))
        return cast("For[ObjectT]", main)

    @property
    def name(self) -> str:
        """The name in logs and metrics: its kind in lowercase, as controller-runtime has it."""
        return self.main_watch.kind.resource.kind.lower()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        kind = _kind_of(cls)
        if "watches" in cls.__dict__:
            _check_watches(cls, kind)
        elif kind is not None and "reconcile" in cls.__dict__ and not hasattr(cls, "watches"):
            raise TypeError(f"{cls.__name__} has no watches; add watches = (For({kind.__name__}),)")


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
        raise TypeError(f"{name}.watches is not a tuple; write watches = (For(...), ...)")
    for watch in cast("tuple[Any, ...]", watches):
        if not isinstance(watch, For | Owns | Watches):
            raise TypeError(f"{name}.watches has {watch!r}; it takes For, Owns and Watches")
        watched: Any = cast("Watch", watch).kind
        if not (isinstance(watched, type) and hasattr(watched, "resource")):
            raise TypeError(f"{name}.watches has {watched!r}, which is no kind; add @kind(...)")
    main = [watch.kind for watch in cls.watches if isinstance(watch, For)]
    if len(main) != 1:
        raise TypeError(f"{name}.watches has to name its own kind with one For(...)")
    if kind is not None and not issubclass(main[0], kind):
        raise TypeError(
            f"{name} reconciles {kind.__name__}, but its watches say For({main[0].__name__})"
        )


class KeyQueue(Protocol):
    """Who wants to know of a watch's events; called in the manager's event loop."""

    def changed(self, watch: Watch, body: Mapping[str, Any]) -> None: ...

    def add_all(self) -> None: ...

    def retry_soon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Subscription:
    """One declared watch, and who wants to know of its events."""

    watch: Watch
    queue: KeyQueue


def selector(labels: Labels) -> str:
    """The labels as Kubernetes' label selector."""
    return ",".join(
        name if value is None else f"{name}={value}" for name, value in sorted(labels.items())
    )


def selects(labels: Labels, found: Mapping[str, str]) -> bool:
    """Whether an object with these labels has the ones that are asked for."""
    return all(name in found and value in {None, found[name]} for name, value in labels.items())


def looks_inside(watch: Watch) -> bool:
    """Whether whole objects are needed, not their metadata alone."""
    secret = (watch.kind.resource.group, watch.kind.resource.plural) == ("", "secrets")
    return isinstance(watch, Watches) and not watch.metadata_only and not secret


UNREADABLE = "unreadable"
"""The field that tells why the rest of an object was left out: it cannot be read."""


def concerned(
    watch: Watch, kind: Resource, body: Mapping[str, Any], ctx: Context | None = None
) -> Iterable[ObjectKey] | Awaitable[Iterable[ObjectKey]]:
    """The keys of the reconciler's `kind` that an event about the object `body` concerns.

    Raises:
        Unreadable: a mapper needs the whole object, which cannot be read.
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
            obj = _read(watch, body)
            return to(ctx, obj) if iscoroutinefunction(to) else list(to(obj))


def group_of(reconciler: Reconciler[Any], body: Mapping[str, Any]) -> Hashable | None:
    """The group of an object of the reconciler's kind, from an event's body."""
    kind = reconciler.main_watch.kind
    return reconciler.group(kind.model_construct(metadata=ObjectMeta.read(body["metadata"])))


def _read(watch: Watches[KindT], body: Mapping[str, Any]) -> KindT:
    if looks_inside(watch):
        try:
            if UNREADABLE in body:
                raise ValueError(body[UNREADABLE])  # noqa: TRY301 - handled as any other reason
            return watch.kind.read(body)
        except ValueError as error:
            resource, reason = watch.kind.resource, reason_of(error)
            unreadable = UnreadableObject.of(resource, body["metadata"], reason)
            raise Unreadable(f"{unreadable} cannot be read: {reason}", unreadable) from None
    return watch.kind.model_construct(metadata=ObjectMeta.read(body["metadata"]))
