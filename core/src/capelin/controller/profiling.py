"""Profiles of a running process: the time of its threads and tasks, and its memory."""

import asyncio
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_THREAD_SECONDS: Final = 0.01
_TASK_SECONDS: Final = 0.1
"""Longer than for threads, because the event loop does nothing else meanwhile."""
_LINES: Final = 50


class ProfileRunsError(Exception):
    """Another profile is being taken."""


class Profiler:
    """Takes one profile at a time."""

    def __init__(self) -> None:
        self._runs = False
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the running profile early, and all later ones at once."""
        self._stopped.set()

    async def stacks(self, seconds: float) -> str:
        """The stacks of all threads, and of the tasks of this event loop.

        Each line is a stack, from its outermost frame, and the milliseconds in which samples found
        it. Flame graphs are drawn from this format.

        Raises:
            ProfileRunsError: Another profile is being taken.
        """
        with self._alone():
            stacks: Counter[str] = Counter()
            tasks = asyncio.create_task(_sample_tasks(stacks))
            try:
                stacks.update(await asyncio.to_thread(self._sample_threads, seconds))
            finally:
                tasks.cancel()
                await asyncio.gather(tasks, return_exceptions=True)
        return "".join(f"{stack} {millis}\n" for stack, millis in sorted(stacks.items()))

    async def memory(self, seconds: float) -> str:
        """The lines of code that allocated most of the memory that is new after some seconds.

        Each line has the bytes, the number of blocks, and the place. Python is slower meanwhile.

        Raises:
            ProfileRunsError: Another profile is being taken.
        """
        with self._alone():
            tracemalloc.start()
            try:
                await asyncio.to_thread(self._stopped.wait, seconds)
                snapshot = await asyncio.to_thread(tracemalloc.take_snapshot)
            finally:
                tracemalloc.stop()
        largest = snapshot.statistics("lineno")[:_LINES]
        return "".join(f"{line.size} {line.count} {line.traceback[0]}\n" for line in largest)

    @contextmanager
    def _alone(self) -> Generator[None]:
        if self._runs:
            raise ProfileRunsError
        self._runs = True
        try:
            yield
        finally:
            self._runs = False

    def _sample_threads(self, seconds: float) -> Counter[str]:
        stacks: Counter[str] = Counter()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stopped.wait(_THREAD_SECONDS):
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            names.pop(threading.get_ident())
            for ident, frame in sys._current_frames().items():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                if ident in names:
                    stack = [_name(outer) for outer in _outer_frames(frame)]
                    _add(stacks, f"thread {names[ident]}", stack[::-1], _THREAD_SECONDS)
        return stacks


async def _sample_tasks(stacks: Counter[str]) -> None:
    while True:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            _add(stacks, "tasks", [_name(frame) for frame in _awaiting(task)], _TASK_SECONDS)
        await asyncio.sleep(_TASK_SECONDS)


def _add(stacks: Counter[str], root: str, frames: list[str], seconds: float) -> None:
    stacks[";".join([root.replace(";", ","), *frames])] += round(1000 * seconds)


def _outer_frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaiting(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """The frames of a task, from its coroutine to the innermost one that waits."""
    inner: Any = task.get_coro()
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
        if frame is None:
            return
        yield frame
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)


def _name(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}"
