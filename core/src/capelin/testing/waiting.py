"""Waits until a condition is met, and otherwise shows the condition and the last value.

shoal = await until(
    lambda: client.get(Shoal, "a", namespace),
    lambda shoal: shoal.status is not None and shoal.status.fish == 3,
)
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from textwrap import dedent, indent
from typing import Any, Final, TypeVar, cast, overload

from rich.pretty import pretty_repr

from capelin.api import BaseObject

T = TypeVar("T")

PATIENCE: Final = 110.0
"""Seconds for one wait: as long as a busy machine may take, and less than the usual time limit of
two minutes for tests. After other waits in the same test, use less, so that the wait ends first."""

_NOTHING: Final = object()


@overload
async def until(
    look: Callable[[], Awaitable[T | None] | T | None], *, within: float = ...
) -> T: ...


@overload
async def until(
    look: Callable[[], Awaitable[T] | T], is_so: Callable[[T], object], *, within: float = ...
) -> T: ...


async def until(
    look: Callable[[], Any], is_so: Callable[[Any], object] = bool, *, within: float = PATIENCE
) -> Any:
    """Call `look` until its value meets the condition, and return the value.

    `look` is a function or a coroutine function. The condition is `is_so`, by default that the
    value is true. An exception of either ends the wait at once.

    Raises:
        AssertionError: The time is over. Shows the source of the condition and the last value.
    """
    __tracebackhide__ = True
    last: Any = _NOTHING
    limit = asyncio.timeout(within)
    try:
        async with limit:
            while True:
                began = time.monotonic()
                answer = look()
                found = await answer if inspect.isawaitable(answer) else answer
                if is_so(found):
                    return found
                last = found
                await asyncio.sleep(pause_after(time.monotonic() - began))
    except TimeoutError:
        if not limit.expired():
            raise
        raise _not_so(look if is_so is bool else is_so, last, within) from None


def wait_until(look: Callable[[], T | None], *, within: float = PATIENCE) -> T:
    """Like `until`, for tests that are not coroutines: wait until the value is true.

    Raises:
        AssertionError: The time is over. Shows the source of the condition and the last value.
    """
    __tracebackhide__ = True
    end = time.monotonic() + within
    while True:
        began = time.monotonic()
        if found := look():
            return found
        if began > end:
            raise _not_so(look, found, within)
        time.sleep(pause_after(time.monotonic() - began))


def pause_after(took: float) -> float:
    """The pause after a look: looking may use a fifth of the time of the awaited process."""
    return min(max(0.005, 4 * took), 0.5)


def _not_so(asked: Callable[..., object], last: object, within: float) -> AssertionError:
    if last is _NOTHING:
        shown = "none, because the first look has not ended"
    else:
        shown = pretty_repr(_plain(last), max_width=100, max_length=50, max_string=1000)
    return AssertionError(
        f"condition not met within {within:g} s:\n{indent(_source(asked), '    ')}\n"
        f"last value:\n{indent(shown, '    ')}"
    )


def _plain(value: object) -> object:
    """Typed objects in wire format, without defaults, secrets and field managers."""
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[object]", value)]
    if not isinstance(value, BaseObject):
        return value
    hidden = {name for name, field in type(value).model_fields.items() if not field.repr}
    fields = {name: value for name, value in value.dump().items() if name not in hidden}
    fields.get("metadata", {}).pop("managedFields", None)
    return fields


def _source(asked: Callable[..., object]) -> str:
    try:
        return dedent(inspect.getsource(asked)).rstrip()
    except (OSError, TypeError):
        # Built in, from `partial`, or typed at a prompt.
        return repr(asked)
