"""A process that outlives the process that started it."""

import asyncio
import dataclasses
import errno
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from capelin.programs import default_signals

from capelin_embedded.processes import cgroups, proc, state_dir
from capelin_embedded.processes.proc import MARKER, Handle
from capelin_embedded.processes.spec import Command, ProcessSpec
from capelin_embedded.processes.state_dir import Record, log_path

_NICE_WITHOUT_CGROUP = 10
CAUSE_UNKNOWN = "cause unknown"
"""The end of the reason for a process that ended without a parent to read its status."""

_INHERITED = ("HOME", "LANG", "PATH", "TMPDIR", "TZ")


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a process. The status is None if it was not our child."""

    status: int | None
    message: str
    """The error in its log that explains it, if found."""

    @property
    def reason(self) -> str:
        if self.status is None:
            ended = "ended" if self.message else f"ended, {CAUSE_UNKNOWN}"
        elif self.status < 0:
            ended = f"was killed by {signal.Signals(-self.status).name}"
        else:
            ended = f"exited with code {self.status}"
        return f"{ended}: {self.message}" if self.message else ended


class Process:
    """A running process, started here or adopted from its state folder."""

    def __init__(self, folder: Path, record: Record, handle: Handle) -> None:
        self._folder = folder
        self._record = record
        self._handle = handle
        self._exit: Exit | None = None

    @classmethod
    async def start(
        cls, folder: Path, spec: ProcessSpec, *, restarts: int = 0, last_end: str = ""
    ) -> "Process":
        """Start a process in its own session and write its record.

        `restarts` and `last_end` come from its predecessors of the same name.
        """
        history = (restarts, last_end)
        # In a thread: fork and exec take milliseconds. The same thread writes the record, so that a
        # cancelled caller leaves no process without one.
        return await asyncio.to_thread(cls._launch, state_dir.private_folder(folder), spec, history)

    @classmethod
    def adopt(cls, folder: Path, name: str) -> "Process | None":
        """Find a process that has a record in the state folder, if it still runs."""
        folder = folder.resolve()
        record = state_dir.read_record(folder, name)
        if record is None:
            return None
        handle = Handle.open(record.identity)
        if handle is None:
            return None
        if not handle.is_alive():
            handle.reap()
            return None
        return cls(folder, record, handle)

    @classmethod
    def _launch(cls, folder: Path, spec: ProcessSpec, history: tuple[int, str]) -> "Process":
        name, command = spec.name, spec.command
        log = state_dir.open_log(log_path(folder, name))
        try:
            log_start = os.lseek(log, 0, os.SEEK_END)
            proc.close_inherited_on_exec()
            with proc.timer_slack(command.limits.timer_slack):
                child = subprocess.Popen(
                    command.arguments,
                    env=_environment(folder, name, command),
                    cwd=command.directory or folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    # Our descriptors close at exec and not before: until then the child holds the
                    # supervisor's lock, so that no other supervisor scans for processes while this
                    # one has no marker yet.
                    close_fds=False,
                    # None, unless this process ignores a signal.
                    preexec_fn=default_signals(),  # noqa: PLW1509
                )
        except ValueError as error:
            # Users can set both. Callers expect an OSError when a process cannot be started.
            reason = f"an argument or environment variable cannot be passed ({error})"
            raise OSError(errno.EINVAL, reason, command.arguments[0]) from error
        finally:
            os.close(log)
        try:
            started = cls._recorded(folder, spec, child.pid, log_start, history)
        except BaseException:
            # On a full disk, for example: no later code could find the process without a record.
            child.kill()
            child.wait()
            raise
        # A Popen object warns when it is deleted while its process runs, as ours should.
        child.returncode = 0
        return started

    @classmethod
    def _recorded(
        cls, folder: Path, spec: ProcessSpec, pid: int, log_start: int, history: tuple[int, str]
    ) -> "Process":
        name, command = spec.name, spec.command
        identity = proc.identify(pid)
        handle = None if identity is None else Handle.open(identity)
        if identity is None or handle is None:
            # A child keeps its pid until it is reaped, and only we reap it.
            raise ChildProcessError(f"{name} was reaped by other code as soon as it started")
        groups = _confine(folder, spec, pid)
        record = Record(
            name, identity, command.hash, log_start, spec.after, spec.grace, groups, *history
        )
        state_dir.write_record(folder, record)
        return cls(folder, record, handle)

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def pid(self) -> int:
        return self._record.identity.pid

    @property
    def hash(self) -> str:
        """The hash of the command that it was started with."""
        return self._record.hash

    @property
    def after(self) -> tuple[str, ...]:
        """The processes that it starts after, and stops before."""
        return self._record.after

    @property
    def restarts(self) -> int:
        """How often earlier processes of this name ended by themselves and were restarted."""
        return self._record.restarts

    @property
    def last_end(self) -> str:
        return self._record.last_end

    def update_record(self, spec: ProcessSpec) -> None:
        """Record the fields of the spec other than the command, which cannot change."""
        record = dataclasses.replace(self._record, after=spec.after, grace=spec.grace)
        if record != self._record:
            state_dir.write_record(self._folder, record)
            self._record = record

    @property
    def log(self) -> Path:
        return log_path(self._folder, self.name)

    @property
    def is_running(self) -> bool:
        return self._handle.is_alive()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, which never reaches another process with the same pid."""
        self._handle.send(number)

    async def wait(self) -> Exit:
        """Wait until it ends. It need not be our child."""
        await self._handle.wait()
        if self._exit is None:
            status = self._handle.reap()
            lines = state_dir.log_tail(self.log, self._record.log_start)
            # The log of a process that exits with a code explains it. The last lines of a process
            # that was killed, or that had lost its parent, may concern anything.
            is_explained = status is not None and status > 0
            message = state_dir.exit_reason(lines, only_fatal=not is_explained)
            if any(cgroups.ran_out_of_memory(Path(group)) for group in self._record.groups):
                message = "it needed more memory than its limit"
            self._exit = Exit(status, message)
        return self._exit

    async def stop(self, grace: float | None = None) -> Exit:
        """Send SIGTERM, after `grace` seconds SIGKILL, and remove the record."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._record.grace if grace is None else grace):
                exited = await self.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            exited = await self.wait()
        await self.kill_session()
        self.remove_record()
        return exited

    async def kill_session(self) -> None:
        """Kill the processes that it started itself and left behind."""
        session = [
            process.identity
            for process in await asyncio.to_thread(proc.marked_processes, self._folder)
            if process.session == self.pid
        ]
        await asyncio.gather(*map(proc.kill, session))

    def remove_record(self) -> None:
        state_dir.remove_record(self._folder, self.name)


async def kill_all(folder: Path) -> None:
    """SIGKILL every process of a state folder at once, if no data needs a clean shutdown."""
    marked = await asyncio.to_thread(proc.marked_processes, folder)
    await asyncio.gather(*(proc.kill(process.identity) for process in marked))


def _confine(folder: Path, spec: ProcessSpec, pid: int) -> tuple[str, ...]:
    limits = spec.command.limits
    name = cgroups.group_name(folder, spec.name)
    possible = cgroups.groups(limits, name, cgroups.own_groups())
    made = [group for group in possible if cgroups.confine(pid, group)]
    nice = limits.nice
    if limits.cpus is not None and not any(group.limits_cpus for group in made):
        nice = max(nice, _NICE_WITHOUT_CGROUP)
    if nice:
        proc.renice(pid, nice)
    return tuple(str(group.folder) for group in made)


def _environment(folder: Path, name: str, command: Command) -> dict[str, str]:
    inherited = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    return {
        **inherited,
        **command.limits.environment(),
        **command.environment,
        MARKER: f"{folder}/{name}",
    }
