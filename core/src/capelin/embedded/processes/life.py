"""The life of one process under a supervisor: started, found ready, found to hang, ended, again."""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from capelin.embedded.processes.command import Declared
from capelin.embedded.processes.decisions import Backoff, Seen
from capelin.embedded.processes.health import until_hung, until_ready
from capelin.embedded.processes.process import Process


@dataclass(slots=True, eq=False)
class Life:
    """What is known of one name: its process, if there is one, and its history."""

    backoff: Backoff
    tell: Callable[[], None]
    """Tells whoever decides about it that something has changed."""
    process: Process | None = None
    reachable: bool = False
    ready: bool = False
    stopping: bool = False
    failures: int = 0
    retry_at: float = 0.0
    reason: str = ""
    _started_at: float = 0.0
    _care: asyncio.Task[None] | None = None
    _verdict: str = ""
    """Why it was ended by us, where it was."""

    def seen(self) -> Seen:
        """What decides about it."""
        process = self.process
        return Seen(
            alive=process is not None,
            hash=process.hash if process else "",
            after=process.after if process else (),
            reachable=self.reachable,
            ready=self.ready,
            stopping=self.stopping,
            failures=self.failures,
            retry_at=self.retry_at,
        )

    def forgive(self) -> None:
        """Start it as if it had never failed."""
        self.failures, self.retry_at, self.reason = 0, 0.0, ""

    def adopt(self, process: Process) -> None:
        """Go on with what somebody else has started."""
        self.process, self._started_at = process, time.monotonic()

    async def start(self, tasks: asyncio.TaskGroup, folder: Path, declared: Declared) -> None:
        """Start it, if nothing is against that."""
        self._started_at = time.monotonic()
        if declared.refusal is not None and (why := declared.refusal()):
            self._failed(why)
            return
        try:
            self.process = await Process.start(folder, declared)
        except OSError as error:
            self._failed(f"cannot be started: {_said(error)}")
        else:
            self.watch(tasks)

    def watch(self, tasks: asyncio.TaskGroup) -> None:
        """Notice its end."""
        if self.process is not None:
            tasks.create_task(self._until_end(self.process))

    def look_after(self, tasks: asyncio.TaskGroup, declared: Declared) -> None:
        """Find out when it is ready, and when it hangs later on, if that is not done already."""
        if self.process is not None and self._care is None and not self.stopping:
            self._care = tasks.create_task(self._look_after(self.process, declared))

    def stop(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to end it."""
        self.stopping, self._verdict = True, ""
        if self._care is not None:
            # What ends in its own time may not answer any more, and is not to be killed for it.
            self._care.cancel()
        tasks.create_task(self._stop())

    async def _stop(self) -> None:
        if self.process is not None:
            await self.process.stop()
            self._ended()
        self.failures, self.reason = 0, ""

    async def _until_end(self, process: Process) -> None:
        ended = await process.wait()
        await process.sweep()
        # Whoever stopped it may have been first, and the next one may run already.
        if self.process is process and not self.stopping:
            with suppress(OSError):
                # What a broken disk keeps is found, and known for dead, by the next supervisor.
                process.forget()
            self._ended()
            self._failed(self._verdict or ended.reason)
            self._verdict = ""

    async def _look_after(self, process: Process, declared: Declared) -> None:
        def missing(what: str) -> None:
            if what != self.reason:
                self.reason = what
                self.tell()

        if declared.reachable is not None:
            await until_ready(declared.reachable, missing)
            self.reachable = self.process is process
            self.tell()
        if declared.ready is not None:
            await until_ready(declared.ready, missing)
        if self.process is not process:
            return
        self.ready, self.reason = True, ""
        self.tell()
        if declared.alive is not None:
            self._verdict = f"hung: {await until_hung(declared.alive)}"
            process.signal(signal.SIGKILL)

    def _ended(self) -> None:
        if self._care is not None:
            self._care.cancel()
        self.process, self._care, self.stopping = None, None, False
        self.reachable, self.ready = False, False
        self.tell()

    def _failed(self, reason: str) -> None:
        now = time.monotonic()
        self.failures = self.backoff.failures(self.failures, now - self._started_at)
        self.retry_at = now + self.backoff.delay(self.failures)
        self.reason = reason
        self.tell()


def _said(error: OSError) -> str:
    # Few of them name a file, and what Python raises itself has words in place of a number.
    what = error.strerror or str(error)
    return f"{what}: {error.filename}" if error.filename else what
