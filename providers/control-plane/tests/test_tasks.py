"""Tasks of control planes: one for each, until it is forgotten or the provider ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from capelin.controller import ObjectKey
from capelin_control_plane.operations.tasks import Tasks

ONE, OTHER = ObjectKey("default", "one"), ObjectKey("default", "other")


class Work:
    """Work until an event."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.cancelled = False

    def __call__(self) -> Coroutine[Any, Any, None]:
        return self._work()

    async def _work(self) -> None:
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def new_tasks() -> Tasks[str]:
    return Tasks(lambda _: None)


async def test_a_task_runs_until_the_end_of_its_work() -> None:
    tasks, work = new_tasks(), Work()
    assert (tasks.state(ONE), tasks.is_running(ONE)) == (None, False)
    tasks.start(ONE, "first", work())
    assert (tasks.state(ONE), tasks.is_running(ONE)) == ("first", True)
    assert (tasks.state(OTHER), tasks.is_running(OTHER)) == (None, False)
    work.may_end.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (tasks.state(ONE), tasks.is_running(ONE)) == ("first", False)


async def test_a_new_task_replaces_the_last_one() -> None:
    tasks, first, second = new_tasks(), Work(), Work()
    tasks.start(ONE, "first", first())
    await asyncio.sleep(0)
    tasks.start(ONE, "second", second())
    await asyncio.sleep(0)
    assert (first.cancelled, second.cancelled) == (True, False)
    assert tasks.state(ONE) == "second"
    await tasks.close()


async def test_forget_stops_one_task() -> None:
    tasks, work, others = new_tasks(), Work(), Work()
    tasks.start(ONE, "one", work())
    tasks.start(OTHER, "other", others())
    await asyncio.sleep(0)
    tasks.forget(ONE)
    tasks.forget(ONE)
    await asyncio.sleep(0)
    assert (work.cancelled, others.cancelled) == (True, False)
    assert (tasks.state(ONE), tasks.is_running(ONE)) == (None, False)
    await tasks.close()


async def test_close_stops_all_tasks() -> None:
    tasks, work = new_tasks(), Work()
    tasks.start(ONE, "one", work())
    await asyncio.sleep(0)
    await tasks.close()
    assert work.cancelled
    assert not tasks.is_running(ONE)
