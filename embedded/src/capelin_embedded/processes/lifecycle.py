"""The lifecycle of one supervised process: started, ready, hung, ended, and started again."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

from capelin_embedded.processes.proc import Activity, activity
from capelin_embedded.processes.process import Process
from capelin_embedded.processes.reconcile import Backoff, Observed, is_hung, poll_pause
from capelin_embedded.processes.spec import Liveness, Probe, ProcessSpec

_LOGGER = logging.getLogger("capelin_embedded.processes")
_PROBE_RETRY_SECONDS = 1.0
_ACTIVITY_SECONDS = 1.0
"""The interval for checking whether a starting process runs at all."""
_UNREADY_SECONDS = 5.0
"""A process is not ready any more after this time: an etcd cluster elects a leader in less."""


@dataclass(slots=True, eq=False)
class Lifecycle:
    """The process of one name, if it runs, and its history."""

    backoff: Backoff
    notify: Callable[[], None]
    """Called after each change."""
    process: Process | None = None
    reachable: bool = False
    ready: bool = False
    serving: bool = True
    stopping: bool = False
    failures: int = 0
    retry_at: float = 0.0
    reason: str = ""
    ends: int = 0
    """The number of its ends that were not stops."""
    last_end: str = ""
    _started_at: float = 0.0
    _ready_at: float | None = None
    _probing: asyncio.Task[None] | None = None
    _kill_reason: str = ""
    """Why the supervisor killed the process, if it did."""

    def observed(self) -> Observed:
        process = self.process
        return Observed(
            alive=process is not None,
            hash=process.hash if process else "",
            after=process.after if process else (),
            reachable=self.reachable,
            ready=self.ready,
            serving=self.serving,
            stopping=self.stopping,
            failures=self.failures,
            retry_at=self.retry_at,
        )

    def reset_backoff(self) -> None:
        """Reset its failures before the next start."""
        self.failures, self.retry_at, self.reason = 0, 0.0, ""

    def adopt(self, process: Process) -> None:
        """Continue with a process that an earlier supervisor started."""
        self.process, self._started_at = process, time.monotonic()
        self.ends, self.last_end = process.restarts, process.last_end

    async def start(self, tasks: asyncio.TaskGroup, folder: Path, spec: ProcessSpec) -> None:
        """Start it, unless its start check rejects it."""
        self._started_at = time.monotonic()
        try:
            if spec.start_check is not None and (why := spec.start_check()):
                self._failed(why)
                return
            self.process = await Process.start(
                folder, spec, restarts=self.ends, last_end=self.last_end
            )
        except OSError as error:
            self._failed(f"cannot be started: {describe_error(error)}")
        else:
            self.watch(tasks)

    def watch(self, tasks: asyncio.TaskGroup) -> None:
        if self.process is not None:
            tasks.create_task(self._wait_for_end(self.process))

    def probe(self, tasks: asyncio.TaskGroup, spec: ProcessSpec) -> None:
        if self.process is not None and self._probing is None and not self.stopping:
            self._probing = tasks.create_task(self._run_probes(self.process, spec))

    def stop(self, tasks: asyncio.TaskGroup) -> None:
        self.stopping, self._kill_reason = True, ""
        if self._probing is not None:
            # A process that shuts down may stop answering. Do not kill it for that.
            self._probing.cancel()
        tasks.create_task(self._stop())

    async def _stop(self) -> None:
        if self.process is not None:
            try:
                await self.process.stop()
            except OSError as error:
                # The process is dead. Only removing its record or cgroup failed.
                _LOGGER.warning("%s has stopped, but: %s", self.process.name, describe_error(error))
            self._ended()
        self.failures, self.reason = 0, ""

    async def _wait_for_end(self, process: Process) -> None:
        exited = await process.wait()
        try:
            await process.kill_session()
        except OSError as error:
            # For example, all descriptors are in use. The next end of the process tries again.
            _LOGGER.warning("%s: its children may run: %s", process.name, describe_error(error))
        # `_stop` may have been first, and the next process may run already.
        if self.process is process and not self.stopping:
            with suppress(OSError):
                # The next supervisor finds the record that cannot be removed, and the dead process.
                process.remove_record()
            self._ended()
            self.ends, self.last_end = self.ends + 1, self._kill_reason or exited.reason
            self._kill_reason = ""
            _LOGGER.warning("%s has ended and is started again: %s", process.name, self.last_end)
            self._failed(self.last_end)

    async def _run_probes(self, process: Process, spec: ProcessSpec) -> None:
        while True:
            try:
                await self._probe_until_hung(process, spec)
            except Exception as error:
                # A missing certificate or a broken probe must not end the supervisor of the others.
                reason = f"cannot be probed: {describe_error(error)}"
                if reason != self.reason:
                    _LOGGER.warning("%s %s", process.name, reason, exc_info=error)
                self._report(reason)
                await asyncio.sleep(_PROBE_RETRY_SECONDS)
            else:
                return

    def _report(self, missing: str) -> None:
        if missing != self.reason:
            self.reason = missing
            self.notify()

    async def _probe_until_hung(self, process: Process, spec: ProcessSpec) -> None:
        stalled_seconds = None if spec.liveness is None else spec.liveness.stalled_seconds
        if spec.reachable is not None:
            if not await _until_success(spec.reachable, self._report, process.pid, stalled_seconds):
                self._kill(process, self.reason)
                return
            self.reachable = self.process is process
            self.notify()
        if spec.readiness is not None and not await _until_success(
            spec.readiness, self._report, process.pid, stalled_seconds
        ):
            self._kill(process, self.reason)
            return
        if self.process is not process:
            return
        self.ready, self.serving, self.reason = True, True, ""
        # Without a readiness probe, nothing shows that the start has succeeded.
        self._ready_at = None if spec.readiness is None else time.monotonic()
        self.notify()
        async with asyncio.TaskGroup() as checks:
            rechecking = checks.create_task(self._recheck(spec))
            if spec.liveness is not None:
                self._kill(process, await _until_hung(spec.liveness, process.pid))
                rechecking.cancel()

    async def _recheck(self, spec: ProcessSpec) -> None:
        """Detect that a process that was ready no longer serves, although it is alive."""
        if spec.readiness is None or spec.readiness_period is None:
            return
        failing_since: float | None = None
        await asyncio.sleep(spec.readiness_period)
        async with aclosing(spec.readiness()) as answers:
            async for missing in answers:
                now = time.monotonic()
                failing_since = (failing_since or now) if missing else None
                serving = failing_since is None or now - failing_since < _UNREADY_SECONDS
                if serving != self.serving:
                    self.serving, self.reason = serving, missing
                    self.notify()
                await asyncio.sleep(_PROBE_RETRY_SECONDS if missing else spec.readiness_period)

    def _kill(self, process: Process, missing: str) -> None:
        self._kill_reason = f"hung: {missing}"
        process.signal(signal.SIGKILL)

    def _ended(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
        self.process, self._probing, self.stopping = None, None, False
        self.reachable, self.ready, self.serving = False, False, True
        self.notify()

    def _failed(self, reason: str) -> None:
        now = time.monotonic()
        ready_for = 0.0 if self._ready_at is None else now - self._ready_at
        self._ready_at = None
        self.failures = self.backoff.failures(self.failures, now - self._started_at, ready_for)
        self.retry_at = now + self.backoff.delay(self.failures)
        self.reason = reason
        self.notify()


async def _until_success(
    probe: Probe, report: Callable[[str], None], pid: int, stalled_seconds: float | None
) -> bool:
    """Probe until it succeeds: often at first, rarely when it takes long.

    Returns:
        False if the process hangs before: none of its threads has run for this many seconds.
    """
    began = looked_at = ran_at = time.monotonic()
    before = activity(pid)
    async with aclosing(probe()) as answers:
        async for missing in answers:
            if not missing:
                return True
            report(missing)
            now = time.monotonic()
            if stalled_seconds is not None and now - looked_at >= _ACTIVITY_SECONDS:
                looked_at, current = now, activity(pid)
                if not current.stalled_since(before):
                    before, ran_at = current, now
                elif now - ran_at >= stalled_seconds:
                    return False
            await asyncio.sleep(poll_pause(now - began))
    return True


async def _until_hung(liveness: Liveness, pid: int) -> str:
    """Probe until the process hangs. Returns the result of the last check."""
    failed = 0
    before: Activity | None = None
    await asyncio.sleep(liveness.period)
    async with aclosing(liveness.probe()) as answers:
        async for missing in answers:
            failed = failed + 1 if missing else 0
            now = activity(pid) if missing else None
            stalled = now is not None and before is not None and now.stalled_since(before)
            if is_hung(failed, liveness.failure_threshold, stalled=stalled):
                return missing
            before = now
            await asyncio.sleep(liveness.retry_period if failed else liveness.period)
    raise RuntimeError("a probe must yield a result for every request")


def describe_error(error: BaseException) -> str:
    """An error in words, with its file."""
    parts: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    if parts:
        return "; ".join(map(describe_error, parts))
    if isinstance(error, OSError):
        # Some errors have no file, and some that Python raises have no `strerror`.
        reason = error.strerror or str(error)
        return f"{reason}: {error.filename}" if error.filename else reason
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
