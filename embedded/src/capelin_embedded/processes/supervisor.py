"""Keeps the declared processes running, and leaves them running when it exits."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from capelin_embedded.file_locks import open_lock, take_lock
from capelin_embedded.processes import proc, state_dir
from capelin_embedded.processes.lifecycle import Lifecycle, describe_error
from capelin_embedded.processes.process import CAUSE_UNKNOWN, Process
from capelin_embedded.processes.reconcile import Backoff, Phase, next_steps, phase, strays
from capelin_embedded.processes.spec import ProcessSpec, check_specs
from capelin_embedded.processes.state_dir import log_path

LOG_BYTES = 16 * 1024 * 1024
"""The size after which the supervisor moves a log to `<name>.log.1`."""

_LOCK_SECONDS = 1.0
_LOST = f"ended while nothing supervised it, {CAUSE_UNKNOWN}"

_LOGGER = logging.getLogger("capelin_embedded.processes")


class AlreadySupervisedError(RuntimeError):
    """Another process supervises this state folder."""


class NotReadyError(RuntimeError):
    """Processes did not become ready. The message has the reasons."""


class SupervisorFailedError(RuntimeError):
    """The supervisor has failed. Its processes run unsupervised. Enter a new one."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    phase: Phase
    pid: int | None
    reason: str
    log: Path
    restarts: int = 0
    """How often it ended by itself and was restarted, under earlier supervisors too."""
    last_end: str = ""
    """The reason of its last end."""


class Supervisor:
    """Supervises the processes of one state folder.

    Use it as a context manager. Entering adopts the processes that earlier supervisors of the
    folder left running and kills those without a record. Leaving keeps all processes running.
    `declare` sets the processes to run from now on, and `stop` stops everything.
    """

    def __init__(
        self,
        folder: Path,
        *,
        backoff: Backoff | None = None,
        log_bytes: int = LOG_BYTES,
        log_check_seconds: float = 5.0,
    ) -> None:
        self._folder = folder
        self._backoff = backoff or Backoff()
        self._log_bytes = log_bytes
        self._log_check_seconds = log_check_seconds
        self._specs: dict[str, ProcessSpec] | None = None
        self._lifecycles: dict[str, Lifecycle] = {}
        self._lost: dict[str, int] = {}
        """Processes that ended unsupervised, with their number of ends."""
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._lock: int | None = None
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._folder = state_dir.private_folder(self._folder)
        self._lock = await _lock(self._folder)
        try:
            await self._adopt()
        except BaseException:
            os.close(self._lock)
            raise
        self._running = asyncio.create_task(self._run(), name=f"supervisor of {self._folder.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._running is not None:
                self._running.cancel()
                # The log already has the failure, and every method raises it.
                await asyncio.wait({self._running})
        finally:
            if self._lock is not None:
                os.close(self._lock)

    def declare(self, *specs: ProcessSpec) -> None:
        """Set the processes to run from now on. All others in the folder stop."""
        before = self._specs or {}
        self._specs = check_specs(specs)
        for name, spec in self._specs.items():
            if name not in before or before[name].command.hash != spec.command.hash:
                self._lifecycle(name).reset_backoff()
            lifecycle = self._lifecycles.get(name)
            process = lifecycle.process if lifecycle else None
            if process and process.hash == spec.command.hash:
                try:
                    process.update_record(spec)
                except OSError as error:
                    # The next declaration tries again.
                    _LOGGER.warning("Cannot write the record of %s: %s", process.log.stem, error)
        self._wake.set()

    @property
    def failure(self) -> BaseException | None:
        """Why the supervisor has failed and no longer supervises, or None while it works."""
        running = self._running
        if running is None or not running.done() or running.cancelled():
            return None
        return running.exception()

    @property
    def states(self) -> Mapping[str, ProcessState]:
        """The state of every process.

        Raises:
            SupervisorFailedError: The supervisor has failed, so the states are unknown.
        """
        self._check_working()
        specs = self._specs or {}
        states: dict[str, ProcessState] = {}
        for name in sorted({*specs, *self._lifecycles}):
            lifecycle = self._lifecycles.get(name)
            process = lifecycle.process if lifecycle else None
            states[name] = ProcessState(
                phase=phase(specs.get(name), lifecycle.observed() if lifecycle else None),
                pid=process.pid if process else None,
                reason=lifecycle.reason if lifecycle else "",
                log=log_path(self._folder, name),
                restarts=lifecycle.ends if lifecycle else 0,
                last_end=lifecycle.last_end if lifecycle else "",
            )
        return states

    async def changes(self) -> AsyncGenerator[Mapping[str, ProcessState], None]:
        """The states now, and again after each change."""
        last: Mapping[str, ProcessState] = {}

        def changed() -> bool:
            return self.states != last

        while True:
            await self._until(changed)
            last = self.states
            yield last

    async def ready(self, within: float = 60.0) -> None:
        """Wait until all declared processes are ready.

        Raises:
            NotReadyError: A process failed repeatedly, or time ran out.
        """

        def settled() -> bool:
            phases = {state.phase for state in self.states.values()}
            return phases <= {Phase.RUNNING} or Phase.FAILED in phases

        await self._until(settled, within)
        missing = [
            _why(name, state)
            for name, state in self.states.items()
            if state.phase is not Phase.RUNNING
        ]
        if missing:
            raise NotReadyError("; ".join(missing))

    async def probed(self, within: float) -> None:
        """Wait until every running process was probed once, for `within` seconds at most.

        Call this after adopting processes, before you base decisions on their states.
        """

        def known() -> bool:
            return all(
                lifecycle.process is None
                or lifecycle.stopping
                or lifecycle.ready
                or lifecycle.reason
                for lifecycle in self._lifecycles.values()
            )

        await self._until(known, within)

    async def stop(self) -> None:
        """Stop everything in the folder, in reverse order of starting."""
        self.declare()
        await self._until(lambda: not self._lifecycles)

    async def _until(self, condition: Callable[[], bool], within: float | None = None) -> None:
        """Wait until a condition is true, for `within` seconds at most."""
        if self._running is None:
            raise RuntimeError("a supervisor works only inside `async with`")
        waiting = asyncio.create_task(self._wait_for(condition))
        try:
            done, _ = await asyncio.wait(
                {waiting, self._running}, timeout=within, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if self._running in done:
            self._check_working()
            await self._running

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _adopt(self) -> None:
        """Adopt the processes of an earlier supervisor, and kill those without a record."""
        for name in state_dir.recorded_names(self._folder):
            process = Process.adopt(self._folder, name)
            if process is None:
                record = state_dir.read_record(self._folder, name)
                # A reboot ended all of them, which is not their failure.
                if record is not None and record.identity.boot == proc.boot_id():
                    self._lost[name] = record.restarts + 1
                state_dir.remove_record(self._folder, name)
            else:
                self._lifecycle(name).adopt(process)
        lifecycles = self._lifecycles.values()
        remembered = {lifecycle.process.pid for lifecycle in lifecycles if lifecycle.process}
        marked = await asyncio.to_thread(proc.marked_processes, self._folder)
        await asyncio.gather(*map(proc.kill, strays(marked, remembered)))

    def _check_working(self) -> None:
        if (failure := self.failure) is not None:
            raise SupervisorFailedError(
                f"the supervisor of {self._folder} has failed: {describe_error(failure)}"
            ) from failure

    async def _run(self) -> None:
        try:
            await self._supervise()
        except Exception:
            _LOGGER.exception("The supervisor of %s has failed", self._folder)
            raise

    async def _supervise(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cap_logs())
            for lifecycle in self._lifecycles.values():
                lifecycle.watch(tasks)
            while True:
                self._wake.clear()
                wait = await self._reconcile(tasks)
                async with self._changed:
                    self._changed.notify_all()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()

    async def _reconcile(self, tasks: asyncio.TaskGroup) -> float | None:
        """Take the next steps. Returns the seconds until the next reconcile without a change."""
        if self._specs is None:
            return None
        now = time.monotonic()
        steps = next_steps(
            self._specs,
            {name: lifecycle.observed() for name, lifecycle in self._lifecycles.items()},
            now,
        )
        for name in steps.stop:
            self._lifecycles[name].stop(tasks)
        for name in steps.start:
            # `declare` may run while another process starts.
            if (spec := self._specs.get(name)) is not None:
                await self._lifecycle(name).start(tasks, self._folder, spec)
        for name, lifecycle in list(self._lifecycles.items()):
            spec = self._specs.get(name)
            if lifecycle.process is None and spec is None:
                del self._lifecycles[name]
            elif spec is not None:
                lifecycle.probe(tasks, spec)
        if steps.start:
            self._wake.set()
        return None if steps.requeue_at is None else max(0.0, steps.requeue_at - now)

    def _lifecycle(self, name: str) -> Lifecycle:
        if name not in self._lifecycles:
            lifecycle = self._lifecycles[name] = Lifecycle(self._backoff, self._wake.set)
            if name in self._lost:
                lifecycle.ends, lifecycle.last_end = self._lost.pop(name), _LOST
        return self._lifecycles[name]

    async def _cap_logs(self) -> None:
        reported: dict[str, str] = {}
        while True:
            for name in list(self._lifecycles):
                log = log_path(self._folder, name)
                try:
                    await asyncio.to_thread(state_dir.rotate_log, log, self._log_bytes)
                except OSError as error:
                    # A full disk, for example. Log it once, and try again until it works.
                    if reported.get(name) != str(error):
                        reported[name] = str(error)
                        _LOGGER.warning("Cannot rotate %s: %s", log, error)
                else:
                    reported.pop(name, None)
            await asyncio.sleep(self._log_check_seconds)


def _why(name: str, state: ProcessState) -> str:
    reason = f": {state.reason}" if state.reason else ""
    return f"{name} is not ready ({state.phase}){reason} (log: {state.log})"


async def _lock(folder: Path) -> int:
    descriptor = open_lock(folder / "lock")
    deadline = time.monotonic() + _LOCK_SECONDS
    # A child of the previous supervisor holds the lock too between fork and exec, even if that
    # supervisor was killed.
    while not take_lock(descriptor):
        if time.monotonic() >= deadline:
            os.close(descriptor)
            raise AlreadySupervisedError(
                f"another Capelin process supervises {folder}. Wait for it or stop it"
            )
        await asyncio.sleep(0.02)
    return descriptor
