"""Tasks of control planes, for work that takes longer than a reconcile may."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from capelin.controller import ObjectKey

T = TypeVar("T")


class Tasks(Generic[T]):
    """At most one task for each control plane, and its state.

    All of it ends with the provider. The next provider has to find out where to continue.
    """

    def __init__(self, wake: Callable[[ObjectKey], None]) -> None:
        self.wake = wake
        self._states: dict[ObjectKey, T] = {}
        self._tasks: dict[ObjectKey, asyncio.Task[None]] = {}

    def state(self, key: ObjectKey) -> T | None:
        """The state of a control plane's last task."""
        return self._states.get(key)

    def is_running(self, key: ObjectKey) -> bool:
        """Whether a control plane's task has not ended."""
        task = self._tasks.get(key)
        return task is not None and not task.done()

    def start(self, key: ObjectKey, state: T, work: Coroutine[Any, Any, None]) -> None:
        """Start a task in place of the last one."""
        self.forget(key)
        self._states[key], self._tasks[key] = state, asyncio.create_task(work)

    def forget(self, key: ObjectKey) -> None:
        """Stop a control plane's task."""
        self._states.pop(key, None)
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop all tasks."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
