"""Keeps what extensions say that they answer in the status of their objects."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from time import monotonic

from capelin.contract.conditions import ConditionSpec, update
from capelin.controller import After, Context, For, ObjectKey, Reconciler, Result, patience
from capelin.extensions.api import MOST_HANDLERS, Extension, Handler, Status
from capelin.runtime import Catalog
from capelin.runtime.calling import (
    AddressError,
    Caller,
    CallingError,
    DiscoveryError,
    NoAnswerError,
    Registry,
    Trouble,
)
from capelin.runtime.v1alpha1 import CLUSTER_API

DISCOVERED = "Discovered"
"""The condition, and its reason while the handlers in the status are what is said now."""

NO_ANSWER: dict[Trouble, str] = {
    "unreachable": "Unreachable",
    "untrusted": "Untrusted",
    "timeout": "TimedOut",
    "redirect": "Redirected",
    "status": "UnexpectedStatus",
    "unreadable": "Unreadable",
}
"""Its reasons where there was no answer; `docs/extensions.md` tells people what they mean."""

PERIOD = timedelta(minutes=10)
"""How often an extension is asked again, though nothing has changed."""


class Extensions(Reconciler[Extension]):
    """Asks extensions for their handlers."""

    watches = (For(Extension),)

    def __init__(self, period: timedelta = PERIOD, *, catalog: Catalog = CLUSTER_API) -> None:
        """Begin with nobody asked.

        Args:
            period: How often an extension is asked again, though nothing has changed.
            catalog: The hooks that handlers may be for.
        """
        self._period = period
        self._catalog = catalog
        self._asked: dict[str, tuple[tuple[str, int], float]] = {}

    async def reconcile(self, ctx: Context, extension: Extension, /) -> Result:
        """Ask when it is time, and say what came of it."""
        version = extension.uid, extension.metadata.generation
        asked, until = self._asked.get(extension.name, (None, 0.0))
        # What we write is an event, too: who answers otherwise each time would be asked for ever.
        if asked == version and (rest := until - monotonic()) > 0:
            return After(rest)
        found, now = await discover(extension, self._catalog), ctx.now()
        status = status_of(extension, found, now)
        await ctx.patch_status(extension, status)
        pause = After(self._period.total_seconds())
        if isinstance(found, CallingError):
            pause = patience(now - status.conditions[0].last_transition_time, most=pause.seconds)
        self._asked[extension.name] = version, monotonic() + pause.seconds
        return pause

    async def on_missing(self, _: Context, key: ObjectKey, /) -> None:
        """Forget when it was asked."""
        self._asked.pop(key.name, None)


async def discover(
    extension: Extension, catalog: Catalog = CLUSTER_API
) -> list[Handler] | CallingError:
    """The handlers that an extension has, or why nobody knows."""
    # A new connection each time: what the last one was allowed to trust does not count any more.
    async with Caller(Registry(), namespace_labels=_unasked, catalog=catalog) as caller:
        try:
            config = await caller.discover(extension.config())
        except CallingError as error:
            return error
    handlers = config.status.handlers
    if len(handlers) > MOST_HANDLERS:
        return DiscoveryError(extension.name, [f"{len(handlers)} are more than {MOST_HANDLERS}"])
    return [Handler.read(handler.dump()) for handler in handlers]


async def _unasked(_: str) -> Mapping[str, str]:
    return {}


def status_of(extension: Extension, found: list[Handler] | CallingError, now: datetime) -> Status:
    """What to say of an extension: its handlers, or those last known and why no others are."""
    before = extension.status or Status()
    if isinstance(found, CallingError):
        said, handlers = (
            ConditionSpec(DISCOVERED, "False", reason_of(found), str(found)),
            before.handlers,
        )
    else:
        said, handlers = (
            ConditionSpec(DISCOVERED, "True", DISCOVERED),
            sorted(found, key=lambda h: h.name),
        )
    generation = extension.metadata.generation
    conditions = update(before.conditions, [said], now=now, generation=generation)
    return Status(observed_generation=generation, handlers=handlers, conditions=conditions)


def reason_of(error: CallingError) -> str:
    """The word for programs."""
    match error:
        case AddressError():
            return "AddressInvalid"
        case NoAnswerError(trouble=trouble):
            return NO_ANSWER[trouble]
        case DiscoveryError():
            return "HandlersInvalid"
        case _:
            return "Refused"
