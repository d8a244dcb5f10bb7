import asyncio
import gc
import time
import weakref
from collections.abc import Callable

import pytest
from capelin.runtime.dispatch import Threads

PATIENCE = 10


class Call:
    """What a handler is called with."""


def fail(_: Call) -> None:
    raise ValueError("no")


def wait_until_gone(kept: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while kept() is not None and time.monotonic() < end:
        time.sleep(0.01)


async def test_a_call_that_failed_is_forgotten_without_a_collector_of_garbage() -> None:
    """A server collects seldom, and a request may be large."""
    call = Call()
    kept = weakref.ref(call)
    collects = gc.isenabled()
    gc.disable()
    try:
        with pytest.raises(ValueError, match="no") as failure:
            await Threads("try").run(fail, call)
        del call, failure
        # The thread tells of the failure a moment before it forgets the call itself.
        await asyncio.to_thread(wait_until_gone, kept)
        assert kept() is None
    finally:
        if collects:
            gc.enable()
