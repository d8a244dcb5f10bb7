"""Processes through /proc and pidfds: identities, exits, and signals to the right process."""

import asyncio
import ctypes
import os
import select
import signal
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MARKER = "CAPELIN_PROCESS"
"""The environment variable of every process that we start: its state folder and its name."""

_WITHOUT_PIDFD_POLL_SECONDS = 0.05
_EXEC_SECONDS = 0.1
_KERNEL_THREAD = 0x00200000
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30


@dataclass(frozen=True, slots=True)
class Identity:
    """A process of one boot. Pids are reused, but not together with the same start time."""

    pid: int
    start_time: int
    boot: str


@dataclass(frozen=True, slots=True)
class MarkedProcess:
    """A running process with our marker."""

    identity: Identity
    session: int
    name: str


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Identity | None:
    """The identity of `pid` now, also of a process that is dead and not yet reaped."""
    fields = _stat(pid)
    return None if fields is None else Identity(pid, int(fields[19]), boot_id())


def marked_processes(folder: Path) -> list[MarkedProcess]:
    """Running processes whose marker contains this state folder, from any starter."""
    prefix = f"{MARKER}={folder.resolve()}/".encode()
    marked: list[MarkedProcess] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            variable = next(
                (item for item in _environment(entry.name) if item.startswith(prefix)), None
            )
            fields = None if variable is None else _stat(int(entry.name))
            if variable is not None and fields is not None:
                identity = Identity(int(entry.name), int(fields[19]), boot_id())
                name = os.fsdecode(variable.removeprefix(prefix))
                marked.append(MarkedProcess(identity, int(fields[3]), name))
    return marked


class Handle:
    """Refers to one process and never to another with the same pid.

    It holds a pidfd. If the kernel has none, it compares the start time before each signal.
    """

    def __init__(self, identity: Identity, pidfd: int | None) -> None:
        self.identity = identity
        self._pidfd = pidfd
        self._waiting: list[asyncio.Future[None]] = []
        if pidfd is not None:
            weakref.finalize(self, os.close, pidfd)

    @classmethod
    def open(cls, identity: Identity) -> "Handle | None":
        """Open a handle, if the pid still refers to that process, dead or alive."""
        try:
            pidfd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return None
        except OSError:
            pidfd = None
        handle = cls(identity, pidfd)
        return handle if identify(identity.pid) == identity else None

    def send(self, number: signal.Signals) -> None:
        """Signal the process, if it still exists."""
        with suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            elif identify(self.identity.pid) == self.identity:
                os.kill(self.identity.pid, number)

    def is_alive(self) -> bool:
        if self._pidfd is None:
            fields = _stat(self.identity.pid)
            same = fields is not None and int(fields[19]) == self.identity.start_time
            return same and fields is not None and fields[0] not in {"Z", "X"}
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    async def wait(self) -> None:
        """Wait until the process ends. It need not be our child."""
        if self._pidfd is None:
            while self.is_alive():  # noqa: ASYNC110 - the kernel does not notify us
                await asyncio.sleep(_WITHOUT_PIDFD_POLL_SECONDS)
            return
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        self._waiting.append(ended)
        # An event loop has one reader for a descriptor.
        loop.add_reader(self._pidfd, self._wake)
        try:
            await ended
        finally:
            self._waiting.remove(ended)
            if not self._waiting:
                loop.remove_reader(self._pidfd)

    def _wake(self) -> None:
        for ended in self._waiting:
            if not ended.done():
                ended.set_result(None)

    def reap(self) -> int | None:
        """The exit status like in `subprocess`, or None if the process is not our child."""
        kind, number = (
            (os.P_PID, self.identity.pid) if self._pidfd is None else (os.P_PIDFD, self._pidfd)
        )
        try:
            result = os.waitid(kind, number, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return None
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


@dataclass(frozen=True, slots=True)
class Activity:
    """How often the threads of a process have run, and whether one is running or runnable now."""

    timeslices: int
    runnable: bool

    def stalled_since(self, before: "Activity") -> bool:
        """Whether no thread has run since then, although none had to wait for a CPU or a disk."""
        return not self.runnable and self.timeslices == before.timeslices


def activity(pid: int) -> Activity:
    timeslices, runnable = 0, False
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError, ValueError, IndexError):
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            runnable = runnable or state in {"R", "D"}
            timeslices += int((task / "schedstat").read_text().split()[2])
    return Activity(timeslices, runnable)


def close_inherited_on_exec() -> None:
    """Keep the descriptors that this process inherited from its own children."""
    for entry in Path("/proc/self/fd").iterdir():
        if (descriptor := int(entry.name)) > 2:
            # The list includes the descriptor of /proc/self/fd, which is closed by now.
            with suppress(OSError):
                os.set_inheritable(descriptor, False)  # noqa: FBT003 - it takes no keyword


def renice(pid: int, nice: int) -> None:
    """Set the nice value of all threads of a process."""
    changed = True
    while changed:
        changed = False
        # A thread may start another in the meantime, with its own old value: repeat until none.
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                thread = int(task.name)
                if os.getpriority(os.PRIO_PROCESS, thread) < nice:
                    os.setpriority(os.PRIO_PROCESS, thread, nice)
                    changed = True
    # With autogroups, the nice value of the session decides between sessions, not the thread's.
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


@contextmanager
def timer_slack(seconds: float) -> Generator[None]:
    """Set the timer slack of the children that this thread starts. 0 changes nothing."""
    nanoseconds = int(seconds * 1e9)
    if not nanoseconds:
        yield
        return
    before = _prctl(_PR_GET_TIMERSLACK, 0)
    _prctl(_PR_SET_TIMERSLACK, nanoseconds)
    try:
        yield
    finally:
        _prctl(_PR_SET_TIMERSLACK, before)


def _prctl(option: int, value: int) -> int:
    """Does nothing if libc has no prctl."""
    call = getattr(ctypes.CDLL(None), "prctl", None)
    return 0 if call is None else int(call(option, ctypes.c_ulong(value)))


async def kill(identity: Identity) -> None:
    """SIGKILL a process, if the pid still refers to it, and wait for its end."""
    handle = Handle.open(identity)
    if handle is not None:
        handle.send(signal.SIGKILL)
        await handle.wait()
        handle.reap()


def _environment(pid: str) -> list[bytes]:
    """The environment of a process. Empty if we may not read it."""
    deadline = time.monotonic() + _EXEC_SECONDS
    try:
        while True:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if environment or time.monotonic() > deadline:
                return environment.split(b"\0")
            # The environment of dead processes and kernel threads is empty, and so is that of a
            # process in the middle of exec. Only the last is worth waiting for.
            fields = _stat(int(pid))
            if fields is None or fields[0] in {"Z", "X"} or int(fields[6]) & _KERNEL_THREAD:
                return []
            if Path(f"/proc/{pid}/cmdline").read_bytes():
                return []
            time.sleep(0.001)
    except OSError:
        return []


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in brackets and may contain brackets itself.
    return text.rpartition(")")[2].split()
