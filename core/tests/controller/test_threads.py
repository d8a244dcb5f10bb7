"""The wait for a thread, which cannot be cancelled."""

import asyncio
import gc
import threading

import pytest
from capelin.controller.kopf_thread import in_own_loop
from capelin.controller.threads import Threads


async def cancel_twice(task: asyncio.Task[None]) -> None:
    for _ in range(2):
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_cancelled_call_waits_for_its_function() -> None:
    begun, end = threading.Event(), threading.Event()

    def function() -> None:
        begun.set()
        end.wait()

    threads = Threads("test")
    task = asyncio.create_task(threads.call(function))
    await asyncio.to_thread(begun.wait)
    await cancel_twice(task)
    assert not task.done()
    end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    threads.close()


async def test_a_cancelled_loop_ends_with_its_thread() -> None:
    begun, cleaned = threading.Event(), threading.Event()

    async def main(_: asyncio.Event) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def cleanup() -> None:
        cleaned.set()

    task = asyncio.create_task(in_own_loop("test", main, cleanup))
    await asyncio.to_thread(begun.wait)
    await cancel_twice(task)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned.is_set()
    assert "test" not in {thread.name for thread in threading.enumerate()}


async def test_a_task_without_a_reader_prints_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main(_: asyncio.Event) -> None:
        await asyncio.wait([asyncio.create_task(fail())])

    async def fail() -> None:
        raise ValueError("logged by kopf")

    async def cleanup() -> None:
        gc.collect()

    await in_own_loop("test", main, cleanup)
    assert caplog.text == ""
