"""Keeps what extensions say that they answer in the status of their objects."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from capelin.contract.conditions import Aspect, find, update
from capelin.controller import After, Context, Done, For, Reconciler, Result, patience
from capelin.extensions.api import MOST_HANDLERS, Extension, Handler, Status
from capelin.runtime.calling import (
    AddressError,
    Caller,
    CallingError,
    DiscoveryError,
    NoAnswerError,
    Registry,
    Trouble,
)

DISCOVERED = "Discovered"
"""The condition: whether the handlers in the status are what the extension says now. Its reason
when they are is the same word; the reasons when they are not follow."""

ADDRESS_INVALID = "AddressInvalid"
"""`spec.clientConfig` leads nowhere."""

HANDLERS_INVALID = "HandlersInvalid"
"""The extension has a handler that cannot be taken, which spoils them all."""

REFUSED = "Refused"
"""The extension answered, and not with success."""

NO_ANSWER: dict[Trouble, str] = {
    "unreachable": "Unreachable",
    "untrusted": "Untrusted",
    "timeout": "TimedOut",
    "redirect": "Redirected",
    "status": "UnexpectedStatus",
    "unreadable": "Unreadable",
}
"""Why there was no answer: nobody listens; the certificate is not from `caBundle` or for another
host; nothing came in time; the answer leads elsewhere, is no success of HTTP, or no JSON of its
hook."""

PERIOD = timedelta(minutes=10)
"""How often an extension is asked again, though nothing has changed."""


class Extensions(Reconciler[Extension]):
    """Asks extensions for their handlers."""

    watches = (For(Extension),)

    def __init__(self, period: timedelta = PERIOD) -> None:
        self._period = period

    async def reconcile(self, extension: Extension, at: Context, /) -> Result:
        """Ask, and say what came of it."""
        if extension.metadata.deletion_timestamp is not None:
            return Done()
        found = await discover(extension)
        now = at.now()
        status = status_of(extension, found, now)
        await at.publish(extension, status)
        if not isinstance(found, CallingError):
            return After(self._period.total_seconds())
        discovered = find(status.conditions, DISCOVERED)
        since = now if discovered is None else discovered.last_transition_time
        return patience(now - since, most=self._period.total_seconds())


async def discover(extension: Extension) -> list[Handler] | CallingError:
    """The handlers that an extension has, or why nobody knows."""
    # A new connection each time: what the last one was allowed to trust does not count any more.
    async with Caller(Registry(), namespace_labels=_unasked) as caller:
        try:
            config = await caller.discover(extension.config())
        except CallingError as error:
            return error
    handlers = config.status.handlers
    if len(handlers) > MOST_HANDLERS:
        problem = f"there are {len(handlers)}, and at most {MOST_HANDLERS} can be"
        return DiscoveryError(extension.name, [problem])
    return [Handler.read(handler.dump()) for handler in handlers]


async def _unasked(_: str) -> Mapping[str, str]:
    return {}


def status_of(extension: Extension, found: list[Handler] | CallingError, now: datetime) -> Status:
    """What to say of an extension: its handlers, or those last known and why no others are."""
    before = extension.status or Status()
    if isinstance(found, CallingError):
        said = Aspect(DISCOVERED, "False", reason_of(found), str(found))
        handlers = before.handlers
    else:
        said = Aspect(DISCOVERED, "True", DISCOVERED)
        handlers = sorted(found, key=lambda handler: handler.name)
    generation = extension.metadata.generation
    conditions = update(before.conditions, [said], now=now, generation=generation)
    return Status(observed_generation=generation, handlers=handlers, conditions=conditions)


def reason_of(error: CallingError) -> str:
    """The word for programs."""
    match error:
        case AddressError():
            return ADDRESS_INVALID
        case NoAnswerError(trouble=trouble):
            return NO_ANSWER[trouble]
        case DiscoveryError():
            return HANDLERS_INVALID
        case _:
            return REFUSED
