"""Guards the event loop: names the reconcile that blocks it, and exits before the lease expires.

A blocking reconcile holds up the rest of its manager: other reconciles, probes, and the renewal of
the lease. If the lease expired meanwhile, another manager would work at the same time.
"""

import asyncio
import faulthandler
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

log = logging.getLogger(__name__)

PAYERS: Final = WeakKeyDictionary[asyncio.Task[Any], Callable[[float], None]]()
"""Functions that get the seconds for which a task held the event loop."""

_TICK = 1.0
# The longest time that a step of the loop may take without a warning.
_LIMIT = 2.0


class LoopGuard:
    """Watches the running event loop from a thread, inside its `with` block.

    Args:
        renewed_at: The last renewal of the lease, while this process holds one.
        exit_after: Seconds after a renewal at which the process exits unless it has renewed again.
            Without it, the process continues.
    """

    def __init__(
        self,
        renewed_at: Callable[[], float | None] = lambda: None,
        exit_after: float | None = None,
        *,
        limit: float = _LIMIT,
        tick: float = _TICK,
    ) -> None:
        self._renewed_at = renewed_at
        self._exit_after = exit_after
        self._armed_for: float | None = None
        self._limit = limit
        self._tick = tick
        self._holder: asyncio.Task[Any] | None = None
        self._ended = threading.Event()
        self._beat = time.monotonic()
        self._reported = 0.0

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._pulse()
        self._thread = threading.Thread(target=self._run, name="loop guard", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._timer.cancel()
        self._thread.join()
        self._arm(None)

    def _pulse(self) -> None:
        now = time.monotonic()
        held = now - self._beat - self._tick
        self._beat = now
        if held > self._limit and self._reported:
            log.warning("%s held the event loop for %.0f s", self._name(), held)
            if self._holder is not None and (pay := PAYERS.get(self._holder)) is not None:
                pay(held)
        self._reported = 0.0
        self._timer = self._loop.call_later(self._tick, self._pulse)

    def _run(self) -> None:
        while not self._ended.wait(self._tick / 2):
            self._arm(self._renewed_at())
            held = time.monotonic() - self._beat - self._tick
            # Reported once when it begins, and again whenever it has doubled.
            if held > max(self._limit, 2 * self._reported):
                self._reported = held
                self._holder = asyncio.current_task(self._loop)
                log.warning(
                    "%s has held the event loop for %.0f s, at %s. Nothing else of this manager "
                    "can run. Use a plain function (it runs in a thread) or await",
                    self._name(),
                    held,
                    self._position(),
                )

    def _arm(self, renewed: float | None) -> None:
        """Make the process exit unless the lease is renewed again.

        faulthandler's timer runs even if C code blocks all Python threads, and it prints the stack
        of each thread.
        """
        if self._exit_after is None or renewed == self._armed_for:
            return
        self._armed_for = renewed
        if renewed is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            left = max(0.001, renewed + self._exit_after - time.monotonic())
            faulthandler.dump_traceback_later(left, exit=True, file=sys.__stderr__ or 2)

    def _name(self) -> str:
        return self._holder.get_name() if self._holder is not None else "A callback"

    def _position(self) -> str:
        # Python has no public function for it.
        frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        frame = frames.get(self._loop_thread)
        if frame is None:
            return "an unknown place"
        last = traceback.extract_stack(frame)[-1]
        return f"{last.filename}:{last.lineno} in {last.name}"
