"""The shape of a reconciler: what it watches, and the step it takes for one object."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar, cast

from capelin.api import BaseObject
from capelin.controller.context import Context
from capelin.controller.results import ObjectKey, Result
from capelin.controller.watches import For, Permission, Watch

ObjectT = TypeVar("ObjectT", bound=BaseObject)


class Reconciler(ABC, Generic[ObjectT]):
    """Moves objects of one kind towards their spec, a step at a time.

    It is never run for the same object twice at once. It gets the object as the API server has it
    now, being deleted or not, and has to be ready to be called at any time for any reason.
    """

    watches: ClassVar[tuple[Watch, ...]]
    """What it looks at: `For` its own kind, `Owns` what it makes, `Watches` the rest."""

    permissions: ClassVar[tuple[Permission, ...]] = ()
    """What it may do beyond what the watches imply."""

    def wake(self, key: ObjectKey) -> None:
        """Ask for a reconcile, because of something that happened outside the cluster."""
        if self._add is not None:
            self._add(key)

    def connect(self, add: Callable[[ObjectKey], None]) -> None:
        """Where `wake` leads from now on; the manager calls this."""
        self._add = add

    _add: Callable[[ObjectKey], None] | None = None

    @abstractmethod
    async def reconcile(self, ctx: Context, obj: ObjectT, /) -> Result:
        """Read, decide, act, tell; or raise, to be called again after a while."""

    async def on_missing(self, ctx: Context, key: ObjectKey, /) -> None:
        """Tidy up after an object that is no longer there, or no longer ours; by default, nothing.

        What has to be tidied up in any case needs a finalizer: while nobody looks, nobody is told.
        """

    @property
    def main_watch(self) -> For[ObjectT]:
        """The watch of the kind that the reconciler is for."""
        (main,) = (watch for watch in self.watches if isinstance(watch, For))
        return cast("For[ObjectT]", main)

    @property
    def name(self) -> str:
        """The name in logs and metrics: its kind in lowercase, as controller-runtime has it."""
        return self.main_watch.kind.resource.kind.lower()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        declared: tuple[Watch, ...] | None = cls.__dict__.get("watches")
        if declared is not None and sum(isinstance(watch, For) for watch in declared) != 1:
            raise TypeError(f"{cls.__name__}.watches has to name its own kind with one For(...)")
