import asyncio
import gc
import time
import weakref
from collections.abc import Callable

import pytest
from capelin.runtime.dispatch import Threads

PATIENCE = 10


class Call:
    """The argument of a handler."""


def fail(_: Call) -> None:
    raise ValueError("no")


def wait_until_gone(kept: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while kept() is not None and time.monotonic() < end:
        time.sleep(0.01)


async def test_a_failed_call_is_released_without_garbage_collection() -> None:
    """A server rarely runs the garbage collector, and requests may be large."""
    call = Call()
    kept = weakref.ref(call)
    collects = gc.isenabled()
    gc.disable()
    try:
        with pytest.raises(ValueError, match="no") as failure:
            await Threads("try").run(fail, call)
        del call, failure
        # The thread reports the failure shortly before it releases the call.
        await asyncio.to_thread(wait_until_gone, kept)
        assert kept() is None
    finally:
        if collects:
            gc.enable()
