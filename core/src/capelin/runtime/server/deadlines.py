"""Ends calls that exceed their time or whose client has disconnected."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Self

from capelin.runtime.server.body import ClientGoneError, Receive

_ROUND_SECONDS = 0.05
"""The interval for checking deadlines. Nearly all calls end before the first check, and a timer
for each call would cost more than many handlers."""


class DeadlineExceededError(Exception):
    """The caller has stopped waiting."""


class RespondedError(Exception):
    """The server sent the failure response, although the call had not ended yet."""

    def __init__(self, responding: asyncio.Task[None]) -> None:
        super().__init__()
        self.responding = responding


Respond = Callable[[], Coroutine[None, None, None]]


class Deadlines:
    """Checks the running calls of a process."""

    def __init__(self) -> None:
        self._calls: set[CallDeadline] = set()
        self._running = False

    def call(self, receive: Receive, seconds: float, respond: Respond) -> "CallDeadline":
        """A block that ends with `DeadlineExceededError` or `ClientGoneError` in these cases.

        If it does not end in time, this calls `respond` meanwhile, and the block ends with
        `RespondedError`.
        """
        return CallDeadline(self, receive, seconds, respond)

    def add(self, call: "CallDeadline") -> None:
        self._calls.add(call)
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_later(_ROUND_SECONDS, self._check)

    def remove(self, call: "CallDeadline") -> None:
        self._calls.discard(call)

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for call in tuple(self._calls):
            call.check(now)
        self._running = bool(self._calls)
        if self._running:
            loop.call_later(_ROUND_SECONDS, self._check)


class CallDeadline:
    """A call, from its first byte to its response."""

    __slots__ = (
        "_cancelling",
        "_deadline",
        "_deadlines",
        "_error",
        "_listener",
        "_receive",
        "_respond",
        "_responding",
        "_seconds",
        "_task",
        "body_read",
    )

    def __init__(
        self, deadlines: Deadlines, receive: Receive, seconds: float, respond: Respond
    ) -> None:
        self._deadlines = deadlines
        self._receive = receive
        self._seconds = seconds
        self._respond = respond
        self._responding: asyncio.Task[None] | None = None
        self._error: type[Exception] | None = None
        self._listener: asyncio.Task[None] | None = None
        self.body_read = False
        """Whether the body is complete: then the next message is the client's disconnection."""

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task has a deadline")
        self._task = task
        self._cancelling = task.cancelling()
        self._deadline = asyncio.get_running_loop().time() + self._seconds
        self._deadlines.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._deadlines.remove(self)
        if self._listener is not None:
            self._listener.cancel()
        if self._error is None:
            return
        # If other code has cancelled the task too, it stays cancelled.
        ours = self._task.uncancel() <= self._cancelling
        cancelled = ours and kind is asyncio.CancelledError
        if self._responding is not None and (cancelled or kind is None):
            raise RespondedError(self._responding) from None
        if cancelled:
            raise self._error from None

    def check(self, now: float) -> None:
        """End the call if it is late, or if its client has disconnected."""
        if now >= self._deadline:
            if self._error is None:
                self._end(DeadlineExceededError)
            else:
                # It had a round to end, and the caller's time is nearly over.
                self._abandon()
        elif self.body_read and self._listener is None:
            self._listener = asyncio.create_task(self._until_gone())

    def abort(self, error: type[Exception]) -> None:
        self._end(error)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end(ClientGoneError)

    def _abandon(self) -> None:
        self._deadlines.remove(self)
        if self._error is DeadlineExceededError:
            self._responding = asyncio.create_task(self._respond())

    def _end(self, error: type[Exception]) -> None:
        if self._error is None:
            self._error = error
            self._task.cancel()
