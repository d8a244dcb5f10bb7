"""Ending calls whose time is over or whose client has gone."""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self

from capelin.runtime.server.bodies import ClientGoneError, Receive

_ROUND_SECONDS = 0.05
"""How often a watch looks at its calls. Nearly all are over before the first look, and a timer for
each of them would cost more than many handlers do."""


class TimeOverError(Exception):
    """The caller does not wait any longer."""


class AnsweredError(Exception):
    """The caller was told that its time is over while the call still would not end."""

    def __init__(self, telling: asyncio.Task[None]) -> None:
        super().__init__()
        self.telling = telling


Tell = Callable[[], Coroutine[None, None, None]]


class Watch:
    """Looks after the calls of a process, as long as there are any."""

    def __init__(self) -> None:
        self._calls: set[WatchedCall] = set()
        self._walking = False

    def call(self, receive: Receive, seconds: float, tell: Tell) -> "WatchedCall":
        """A block that is left with `TimeOverError` or `ClientGoneError` when it comes to that.

        If it is not left although its time is over, `tell` is called meanwhile, and it ends with
        `AnsweredError`.
        """
        return WatchedCall(self, receive, seconds, tell)

    def begin(self, call: "WatchedCall") -> None:
        """Look after a call."""
        self._calls.add(call)
        if not self._walking:
            self._walking = True
            asyncio.get_running_loop().call_later(_ROUND_SECONDS, self._walk)

    def end(self, call: "WatchedCall") -> None:
        """Look after it no more."""
        self._calls.discard(call)

    def _walk(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for call in tuple(self._calls):
            call.look(now)
        self._walking = bool(self._calls)
        if self._walking:
            loop.call_later(_ROUND_SECONDS, self._walk)


class WatchedCall:
    """A call, from its first byte to its answer."""

    __slots__ = (
        "_cancelling",
        "_deadline",
        "_listener",
        "_receive",
        "_seconds",
        "_task",
        "_tell",
        "_telling",
        "_watch",
        "_why",
        "heard",
    )

    def __init__(self, watch: Watch, receive: Receive, seconds: float, tell: Tell) -> None:
        self._watch = watch
        self._receive = receive
        self._seconds = seconds
        self._tell = tell
        self._telling: asyncio.Task[None] | None = None
        self._why: type[Exception] | None = None
        self._listener: asyncio.Task[None] | None = None
        self.heard = False
        """Whether all of the body is read: what comes then is that the client hangs up."""

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be watched")
        self._task = task
        self._cancelling = task.cancelling()
        self._deadline = asyncio.get_running_loop().time() + self._seconds
        self._watch.begin(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.end(self)
        if self._listener is not None:
            self._listener.cancel()
        if self._why is None:
            return
        # Somebody else may have cancelled the task too, and then it stays cancelled.
        ours = self._task.uncancel() <= self._cancelling
        cancelled = ours and kind is asyncio.CancelledError
        if self._telling is not None and (cancelled or kind is None):
            raise AnsweredError(self._telling) from None
        if cancelled:
            raise self._why from None

    def look(self, now: float) -> None:
        """End the call if it is late; find out whether it is still for somebody."""
        if now >= self._deadline:
            if self._why is None:
                self._end(TimeOverError)
            else:
                # It had a round's time to end, and its caller's is nearly over.
                self._leave_alone()
        elif self.heard and self._listener is None:
            self._listener = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end(ClientGoneError)

    def _leave_alone(self) -> None:
        self._watch.end(self)
        if self._why is TimeOverError:
            self._telling = asyncio.create_task(self._tell())

    def _end(self, why: type[Exception]) -> None:
        if self._why is None:
            self._why = why
            self._task.cancel()
