"""Waits until something is so; when it does not come to that, tells what was asked and seen.

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
"""Seconds for one wait: as long as a busy machine may take, and less than the two minutes after
which tests are commonly ended. Where others have waited before, give it less: then it is heard."""

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
    """Look again and again until what is seen is so, and give what was seen then.

    `look` is a function or a coroutine function; anything true will do, unless `is_so` says
    otherwise. What either of them raises ends the wait at once.

    Raises:
        AssertionError: it was not so in time; with the question's source and what was seen last.
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
    """As `until`, for tests that are no coroutines: look until what is seen is true.

    Raises:
        AssertionError: it was not in time; with the question's source and what was seen last.
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
    """The seconds after a look: looking may take a fifth of the time of those who are awaited."""
    return min(max(0.005, 4 * took), 0.5)


def _not_so(asked: Callable[..., object], last: object, within: float) -> AssertionError:
    if last is _NOTHING:
        shown = "nothing: the first look has not come to an end"
    else:
        shown = pretty_repr(_plain(last), max_width=100, max_length=50, max_string=1000)
    return AssertionError(
        f"not so within {within:g} s:\n{indent(_source(asked), '    ')}\n"
        f"seen last:\n{indent(shown, '    ')}"
    )


def _plain(value: object) -> object:
    """Typed objects as the server has them; neither defaults, secrets nor who wrote what."""
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
        # Written in C, made by `partial`, or typed at a prompt.
        return repr(asked)
