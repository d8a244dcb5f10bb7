"""Threads for plain handlers that may wait.

Each handler has threads of its own, so that calls that hang hold up no other handler. A thread
cannot be stopped: it is left alone with its call, and does not keep the process from ending.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

MOST = 32
"""How many calls of one handler can be worked on at a time; more wait."""

_Outcome = tuple[Any, BaseException | None]


class AllHangError(Exception):
    """Every thread of a handler is at a call whose caller waits no longer."""


class Threads:
    """The threads of one handler, as many as it has needed at a time."""

    def __init__(self, handler: str) -> None:
        self._name = f"handler {handler}"
        self._count = 0
        self._waiting: SimpleQueue[_Work] = SimpleQueue()
        self._unfinished: set[_Work] = set()
        self._lock = Lock()

    async def run(self, function: Callable[[Any], Any], call: object) -> Any:
        """What a function makes of a call.

        Raises:
            AllHangError: nobody can say when it would begin.
        """
        work = _Work(function, call)
        with self._lock:
            busy = len(self._unfinished)
            if busy >= MOST and sum(each.hangs() for each in self._unfinished) >= MOST:
                raise AllHangError
        if busy >= self._count < MOST:
            # Unlike those of an executor, nobody waits for a daemon when the process ends.
            Thread(target=self._serve, name=self._name, daemon=True).start()
            self._count += 1
        with self._lock:
            self._unfinished.add(work)
        self._waiting.put(work)
        await work.done
        result, error = work.outcome()
        if error is None:
            return result
        try:
            raise error
        finally:
            # The error knows this frame: if this knew the error, both would stay, and with them
            # the request, until garbage is collected.
            del error

    def _serve(self) -> None:
        while True:
            self._finish(self._waiting.get())

    def _finish(self, work: "_Work") -> None:
        work.do()
        # First, since the next call may come as soon as this one is answered.
        with self._lock:
            self._unfinished.discard(work)
        work.tell()


class _Work:
    """A call on its way through a thread."""

    __slots__ = ("_begun", "_call", "_context", "_function", "_loop", "_outcome", "done")

    def __init__(self, function: Callable[[Any], Any], call: object) -> None:
        self._function, self._call = function, call
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._begun = False
        self._outcome: _Outcome = (None, None)
        self.done: asyncio.Future[None] = self._loop.create_future()

    def hangs(self) -> bool:
        """Whether a thread is still at it although nobody waits for it any more."""
        return self._begun and self.done.cancelled()

    def do(self) -> None:
        """Call the function, if somebody still waits for it."""
        if self.done.cancelled():
            return
        self._begun = True
        try:
            self._outcome = self._context.run(self._function, self._call), None
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            self._outcome = None, error

    def tell(self) -> None:
        """Let whoever waits know that it is done."""
        # Nobody is there any more if the loop is closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell)

    def outcome(self) -> _Outcome:
        """What came of it, which is told once.

        An error knows the frames that it came through, and they know this.
        """
        outcome, self._outcome = self._outcome, (None, None)
        return outcome

    def _tell(self) -> None:
        if self.done.done():
            self._outcome = (None, None)
        else:
            self.done.set_result(None)
