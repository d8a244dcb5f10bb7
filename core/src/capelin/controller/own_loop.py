"""Runs a coroutine in a thread with its own event loop, following kopf's documentation."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from capelin.controller.threads import until_done

_CLOSING = 0.25
_AGAIN = 0.5

Step = Callable[[], Coroutine[Any, Any, None]]


async def in_own_loop(name: str, main: Step, cleanup: Step) -> None:
    """Run `main` until it ends or is cancelled, then `cleanup` after all other tasks have ended."""
    here, there = asyncio.get_running_loop(), asyncio.new_event_loop()
    ended: asyncio.Future[BaseException | None] = here.create_future()
    stop = asyncio.Event()

    async def contained() -> None:
        tasks = asyncio.create_task(main()), asyncio.create_task(stop.wait())
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await _end_all_others()
        await cleanup()
        # aiohttp closes TLS connections in the background. Its documentation recommends this pause.
        await asyncio.sleep(_CLOSING)
        if not tasks[0].cancelled():
            tasks[0].result()

    def run() -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: there) as runner:
                runner.run(contained())
        except BaseException as raised:  # noqa: BLE001 - raised in the other loop
            error = raised
        here.call_soon_threadsafe(ended.set_result, error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        await asyncio.shield(ended)
    finally:
        with suppress(RuntimeError):  # its loop is closed: it has ended
            there.call_soon_threadsafe(stop.set)
        await until_done(ended)
        thread.join()
    if (error := ended.result()) is not None:
        raise error


async def _end_all_others() -> None:
    """Cancel the tasks of this loop until all have ended: a task can lose a cancellation."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=_AGAIN)
