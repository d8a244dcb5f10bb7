"""Keeps a declared set of processes running, and leaves them running when it goes."""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from capelin.embedded.processes import kernel, logs, records
from capelin.embedded.processes.command import Declared, check_declared
from capelin.embedded.processes.decisions import Backoff, Phase, next_steps, phase, strays
from capelin.embedded.processes.life import Life
from capelin.embedded.processes.process import Process, log_path

LOG_BYTES = 16 * 1024 * 1024
"""A log longer than this moves to `<name>.log.1`."""

_LOCK_SECONDS = 1.0


class AlreadySupervisedError(RuntimeError):
    """Somebody else looks after this state folder."""


class NotReadyError(RuntimeError):
    """Processes did not become ready, and why."""


@dataclass(frozen=True, slots=True)
class State:
    """What people want to know of one process."""

    phase: Phase
    pid: int | None
    reason: str
    log: Path


class Supervisor:
    """Looks after the processes of one state folder.

    Use it as a context manager. Entering finds what earlier supervisors of the folder left running
    and kills what no one remembers; leaving lets everything run on. `declare` says what should run
    from then on, `stop` ends all of it.
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
        self._declared: dict[str, Declared] | None = None
        self._lives: dict[str, Life] = {}
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._lock: int | None = None
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._folder = records.private_folder(self._folder)
        self._lock = await _lock(self._folder)
        try:
            await self._find()
        except BaseException:
            os.close(self._lock)
            raise
        self._running = asyncio.create_task(self._run(), name=f"supervisor of {self._folder.name}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._running is not None:
                self._running.cancel()
                with suppress(asyncio.CancelledError):
                    await self._running
        finally:
            if self._lock is not None:
                os.close(self._lock)

    def declare(self, *declared: Declared) -> None:
        """Say what runs from now on; everything else in the folder is stopped."""
        before = self._declared or {}
        self._declared = check_declared(declared)
        for name, one in self._declared.items():
            if name not in before or before[name].command.hash != one.command.hash:
                self._life(name).forgive()
            life = self._lives.get(name)
            if life and life.process and life.process.hash == one.command.hash:
                life.process.remember(one)
        self._wake.set()

    @property
    def states(self) -> Mapping[str, State]:
        """What every process is doing."""
        declared = self._declared or {}
        states: dict[str, State] = {}
        for name in sorted({*declared, *self._lives}):
            life = self._lives.get(name)
            states[name] = State(
                phase=phase(declared.get(name), life.seen() if life else None),
                pid=life.process.pid if life and life.process else None,
                reason=life.reason if life else "",
                log=log_path(self._folder, name),
            )
        return states

    async def changes(self) -> AsyncGenerator[Mapping[str, State], None]:
        """The states now, and again whenever one of them changed."""
        last: Mapping[str, State] = {}

        def changed() -> bool:
            return self.states != last

        while True:
            await self._until(changed)
            last = self.states
            yield last

    async def ready(self, within: float = 60.0) -> None:
        """Wait until everything declared is ready.

        Raises:
            NotReadyError: a process failed again and again, or time ran out.
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

    async def acquainted(self, within: float) -> None:
        """Wait until whatever runs has said once whether it is ready.

        For whoever has to know what an earlier supervisor left before it decides anything. What
        does not answer is waited for no longer than `within` seconds.
        """

        def known() -> bool:
            return all(
                life.process is None or life.stopping or life.ready or life.reason
                for life in self._lives.values()
            )

        await self._until(known, within)

    async def stop(self) -> None:
        """Stop everything in the folder, those that others were started after last."""
        self.declare()
        await self._until(lambda: not self._lives)

    async def _until(self, happened: Callable[[], bool], within: float | None = None) -> None:
        """Wait until something is true, for `within` seconds at most."""
        if self._running is None:
            raise RuntimeError("a supervisor works inside `async with` only")
        waiting = asyncio.create_task(self._wait_for(happened))
        try:
            done, _ = await asyncio.wait(
                {waiting, self._running}, timeout=within, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if self._running in done:
            await self._running

    async def _wait_for(self, happened: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(happened)

    async def _find(self) -> None:
        """Take over what an earlier supervisor left; end what it could not remember."""
        for name in records.names(self._folder):
            process = Process.adopt(self._folder, name)
            if process is None:
                records.forget(self._folder, name)
            else:
                self._life(name).adopt(process)
        remembered = {life.process.pid for life in self._lives.values() if life.process}
        marked = await asyncio.to_thread(kernel.marked, self._folder)
        await asyncio.gather(*map(kernel.end, strays(marked, remembered)))

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cap_logs())
            for life in self._lives.values():
                life.watch(tasks)
            while True:
                self._wake.clear()
                wait = await self._step(tasks)
                async with self._changed:
                    self._changed.notify_all()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()

    async def _step(self, tasks: asyncio.TaskGroup) -> float | None:
        """Do what is to be done now; seconds until something may be again."""
        if self._declared is None:
            return None
        now = time.monotonic()
        steps = next_steps(
            self._declared, {name: life.seen() for name, life in self._lives.items()}, now
        )
        for name in steps.stop:
            self._lives[name].stop(tasks)
        for name in steps.start:
            # Starting takes a moment, in which others can be declared.
            if (declared := self._declared.get(name)) is not None:
                await self._life(name).start(tasks, self._folder, declared)
        for name, life in list(self._lives.items()):
            declared = self._declared.get(name)
            if life.process is None and declared is None:
                del self._lives[name]
            elif declared is not None:
                life.look_after(tasks, declared)
        if steps.start:
            self._wake.set()
        return None if steps.look_again_at is None else max(0.0, steps.look_again_at - now)

    def _life(self, name: str) -> Life:
        return self._lives.setdefault(name, Life(self._backoff, self._wake.set))

    async def _cap_logs(self) -> None:
        while True:
            for name in list(self._lives):
                await asyncio.to_thread(logs.rotate, log_path(self._folder, name), self._log_bytes)
            await asyncio.sleep(self._log_check_seconds)


def _why(name: str, state: State) -> str:
    said = f": {state.reason}" if state.reason else ""
    return f"{name} is not ready ({state.phase}){said}; its log is {state.log}"


async def _lock(folder: Path) -> int:
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    patience = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Between fork and exec, what a supervisor starts holds the lock as well, even if that
            # supervisor is killed in this moment.
            if time.monotonic() < patience:
                await asyncio.sleep(0.02)
                continue
            os.close(descriptor)
            raise AlreadySupervisedError(
                f"another Capelin process looks after {folder}; wait for it or stop it"
            ) from None
        return descriptor
