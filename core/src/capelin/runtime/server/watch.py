"""Ending a call when its time is over or its client has gone."""

import asyncio
from types import TracebackType
from typing import Self

from capelin.runtime.server.bodies import ClientGoneError, Receive

_PATIENCE_SECONDS = 0.05
"""How long a call may last before somebody looks whether its client is still there."""


class TimeOverError(Exception):
    """The caller does not wait any longer."""


class Watch:
    """Cancels what happens in its block once it is late, or for nobody.

    Leaving the block then raises `TimeOverError` or `ClientGoneError`. Nearly all calls are over
    at once, so nothing but timers is started for them.
    """

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self._why: type[Exception] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._presence: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be watched")
        self._task = task
        self._cancelling = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._seconds, self._end, TimeOverError)
        return self

    def for_the_client(self) -> None:
        """From here on, end as well when the client hangs up. Its body has to be read by now."""
        self._presence = self._loop.call_later(_PATIENCE_SECONDS, self._listen)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if self._presence is not None:
            self._presence.cancel()
        if self._listener is not None:
            self._listener.cancel()
        if self._why is None:
            return
        # Somebody else may have cancelled the task too, and then it stays cancelled.
        ours = self._task.uncancel() <= self._cancelling
        if ours and kind is asyncio.CancelledError:
            raise self._why from None

    def _listen(self) -> None:
        self._listener = self._loop.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end(ClientGoneError)

    def _end(self, why: type[Exception]) -> None:
        if self._why is None:
            self._why = why
            self._task.cancel()
