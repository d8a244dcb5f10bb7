"""One operating system process that outlives whoever started it."""

import asyncio
import dataclasses
import errno
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from capelin.embedded.processes import cgroups, kernel, logs, records
from capelin.embedded.processes.command import Command, Declared
from capelin.embedded.processes.kernel import MARKER, Handle

_NICE_FOR_WANT_OF_A_GROUP = 10
_INHERITED = ("HOME", "LANG", "PATH", "TMPDIR", "TZ")


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. The status is unknown where it was not our child."""

    status: int | None
    complaint: str

    @property
    def reason(self) -> str:
        """One sentence for people."""
        if self.status is None:
            ended = "ended"
        elif self.status < 0:
            ended = f"was killed by {signal.Signals(-self.status).name}"
        else:
            ended = f"exited with code {self.status}"
        return f"{ended}: {self.complaint}" if self.complaint else ended


class Process:
    """A running process, started here or found again through its state folder."""

    def __init__(self, folder: Path, record: records.Record, handle: Handle) -> None:
        self._folder = folder
        self._record = record
        self._handle = handle
        self._exit: Exit | None = None

    @classmethod
    async def start(cls, folder: Path, declared: Declared) -> "Process":
        """Start a process in a session of its own and remember it in the state folder."""
        # In a thread: fork and exec take milliseconds. What is started is remembered there too,
        # so that a cancelled caller leaves no process behind that nobody knows.
        return await asyncio.to_thread(cls._launch, records.private_folder(folder), declared)

    @classmethod
    def adopt(cls, folder: Path, name: str) -> "Process | None":
        """Find a process that the state folder remembers, if it still runs."""
        folder = folder.resolve()
        record = records.read(folder, name)
        if record is None:
            return None
        handle = Handle.open(record.identity)
        if handle is None:
            return None
        if not handle.is_alive():
            handle.collect()
            return None
        return cls(folder, record, handle)

    @classmethod
    def _launch(cls, folder: Path, declared: Declared) -> "Process":
        name, command = declared.name, declared.command
        log = logs.open_log(log_path(folder, name))
        try:
            log_start = os.lseek(log, 0, os.SEEK_END)
            kernel.keep_descriptors()
            with kernel.timer_slack(command.limits.timer_slack):
                child = subprocess.Popen(
                    command.arguments,
                    env=_environment(folder, name, command),
                    cwd=command.directory or folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    # Ours close themselves at exec and not before: until then the child holds the
                    # supervisor's lock, so that the next one cannot look for what runs while this
                    # one cannot be seen yet.
                    close_fds=False,
                )
        except ValueError as error:
            # Users have a say in both; whoever starts a process is prepared for an OSError.
            reason = f"an argument or environment variable cannot be passed on ({error})"
            raise OSError(errno.EINVAL, reason, command.arguments[0]) from error
        finally:
            os.close(log)
        try:
            started = cls._remembered(folder, declared, child.pid, log_start)
        except BaseException:
            # On a full disk, say: nobody would find it again.
            child.kill()
            child.wait()
            raise
        # Popen objects complain when they go while their process lives, which ours is meant to.
        child.returncode = 0
        return started

    @classmethod
    def _remembered(cls, folder: Path, declared: Declared, pid: int, log_start: int) -> "Process":
        name, command = declared.name, declared.command
        identity = kernel.identify(pid)
        handle = None if identity is None else Handle.open(identity)
        if identity is None or handle is None:
            # Dead or alive, a child keeps its pid until it is collected, and only we collect it.
            raise ChildProcessError(f"{name} was collected by somebody else as soon as it started")
        groups = _confine(folder, declared, pid)
        record = records.Record(
            name, identity, command.hash, log_start, declared.after, declared.grace, groups
        )
        records.write(folder, record)
        return cls(folder, record, handle)

    @property
    def name(self) -> str:
        """Its name in the state folder."""
        return self._record.name

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._record.identity.pid

    @property
    def hash(self) -> str:
        """The hash of the command that it was started with."""
        return self._record.hash

    @property
    def after(self) -> tuple[str, ...]:
        """The processes that it was started after, and that it is stopped before."""
        return self._record.after

    def remember(self, declared: Declared) -> None:
        """Keep in mind what a declaration says beyond the command, which cannot change."""
        record = dataclasses.replace(self._record, after=declared.after, grace=declared.grace)
        if record != self._record:
            records.write(self._folder, record)
            self._record = record

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return log_path(self._folder, self.name)

    @property
    def is_running(self) -> bool:
        """Whether it still runs."""
        return self._handle.is_alive()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; it never reaches another process that got the same pid."""
        self._handle.send(number)

    async def wait(self) -> Exit:
        """Wait until it ends, whoever its parent is."""
        await self._handle.until_exit()
        if self._exit is None:
            status = self._handle.collect()
            said = logs.complaint(logs.tail(self.log, self._record.log_start))
            if any(cgroups.ran_out_of_memory(Path(group)) for group in self._record.groups):
                said = "it needed more memory than its limit"
            self._exit = Exit(status, said)
        return self._exit

    async def stop(self, grace: float | None = None) -> Exit:
        """Ask it to end, insist after `grace` seconds, and forget it."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._record.grace if grace is None else grace):
                ended = await self.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            ended = await self.wait()
        await self.sweep()
        self.forget()
        return ended

    async def sweep(self) -> None:
        """End what it started itself and left behind."""
        session = [
            one.identity
            for one in await asyncio.to_thread(kernel.marked, self._folder)
            if one.session == self.pid
        ]
        await asyncio.gather(*map(kernel.end, session))

    def forget(self) -> None:
        """Remember it no more, and remove its control groups, now that nothing of it is left."""
        records.forget(self._folder, self.name)


async def kill_all(folder: Path) -> None:
    """SIGKILL every process of a state folder at once, for when nothing in it is worth keeping."""
    found = await asyncio.to_thread(kernel.marked, folder)
    await asyncio.gather(*(kernel.end(one.identity) for one in found))


def log_path(folder: Path, name: str) -> Path:
    """Where the output of a process goes."""
    return folder / f"{name}.log"


def _confine(folder: Path, declared: Declared, pid: int) -> tuple[str, ...]:
    limits = declared.command.limits
    name = cgroups.group_name(folder, declared.name)
    wanted = cgroups.groups(limits, name, cgroups.own_groups())
    made = [group for group in wanted if cgroups.confine(pid, group)]
    nice = limits.nice
    if limits.cpus is not None and not any(group.limits_cpus for group in made):
        nice = max(nice, _NICE_FOR_WANT_OF_A_GROUP)
    if nice:
        kernel.renice(pid, nice)
    return tuple(str(group.folder) for group in made)


def _environment(folder: Path, name: str, command: Command) -> dict[str, str]:
    inherited = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    return {
        **inherited,
        **command.limits.environment(),
        **command.environment,
        MARKER: f"{folder}/{name}",
    }
