"""What the kernel knows of processes: who they are, signals that never hit a stranger, exits."""

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
"""The environment variable that names the state folder and the process of all that we start."""

_WITHOUT_PIDFD_POLL_SECONDS = 0.05
_EXEC_SECONDS = 0.1
_KERNEL_THREAD = 0x00200000
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30


@dataclass(frozen=True, slots=True)
class Identity:
    """One process of one boot: pids come again, start times and boots do not."""

    pid: int
    start_time: int
    boot: str


@dataclass(frozen=True, slots=True)
class Marked:
    """A live process that carries our marker."""

    identity: Identity
    session: int
    name: str


@cache
def boot() -> str:
    """The running boot's id."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Identity | None:
    """Who `pid` is now, dead but not yet collected included."""
    fields = _stat(pid)
    return None if fields is None else Identity(pid, int(fields[19]), boot())


def marked(folder: Path) -> list[Marked]:
    """Live processes whose marker names this state folder, whoever started them."""
    prefix = f"{MARKER}={folder.resolve()}/".encode()
    found: list[Marked] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            variable = next((v for v in _environment(entry.name) if v.startswith(prefix)), None)
            fields = None if variable is None else _stat(int(entry.name))
            if variable is not None and fields is not None:
                identity = Identity(int(entry.name), int(fields[19]), boot())
                name = os.fsdecode(variable.removeprefix(prefix))
                found.append(Marked(identity, int(fields[3]), name))
    return found


class Handle:
    """A hold on one process that can never come to mean another.

    By pidfd. Where the kernel has none, the start time is compared before each signal.
    """

    def __init__(self, identity: Identity, pidfd: int | None) -> None:
        self.identity = identity
        self._pidfd = pidfd
        if pidfd is not None:
            weakref.finalize(self, os.close, pidfd)

    @classmethod
    def open(cls, identity: Identity) -> "Handle | None":
        """Take hold of a process, if the pid still means that one, dead or alive."""
        try:
            pidfd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return None
        except OSError:
            pidfd = None
        handle = cls(identity, pidfd)
        return handle if identify(identity.pid) == identity else None

    def send(self, number: signal.Signals) -> None:
        """Signal the process; nothing happens where it is gone."""
        with suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            elif identify(self.identity.pid) == self.identity:
                os.kill(self.identity.pid, number)

    def is_alive(self) -> bool:
        """Whether it still runs."""
        if self._pidfd is None:
            fields = _stat(self.identity.pid)
            same = fields is not None and int(fields[19]) == self.identity.start_time
            return same and fields is not None and fields[0] not in {"Z", "X"}
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    async def until_exit(self) -> None:
        """Wait for the end of the process, which need not be our child."""
        if self._pidfd is None:
            while self.is_alive():  # noqa: ASYNC110 - nothing tells when a stranger ends
                await asyncio.sleep(_WITHOUT_PIDFD_POLL_SECONDS)
            return
        # A copy of its own for each who waits: an event loop knows one reader a descriptor.
        descriptor = os.dup(self._pidfd)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        loop.add_reader(descriptor, lambda: None if ended.done() else ended.set_result(None))
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def collect(self) -> int | None:
        """The exit status as `subprocess` has it, where the process was our child."""
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


def keep_descriptors() -> None:
    """Pass on no descriptor that we were given; those that we open ourselves never are."""
    for entry in Path("/proc/self/fd").iterdir():
        if (descriptor := int(entry.name)) > 2:
            # That of the folder itself is in the list, and closed by now.
            with suppress(OSError):
                os.set_inheritable(descriptor, False)  # noqa: FBT003 - it takes no keyword


def renice(pid: int, nice: int) -> None:
    """Make all threads of a process give way to others."""
    changed = True
    while changed:
        changed = False
        # What one of its threads starts meanwhile has the priority of that thread: look again.
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                thread = int(task.name)
                if os.getpriority(os.PRIO_PROCESS, thread) < nice:
                    os.setpriority(os.PRIO_PROCESS, thread, nice)
                    changed = True
    # Where sessions are scheduled as groups, threads of different sessions do not compete by their
    # own priority but by their session's.
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


@contextmanager
def timer_slack(seconds: float) -> Generator[None]:
    """Have what this thread starts meanwhile keep its timers less exactly. 0 changes nothing."""
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
    """Where there is no such call, nothing happens: processes run as well without."""
    call = getattr(ctypes.CDLL(None), "prctl", None)
    return 0 if call is None else int(call(option, ctypes.c_ulong(value)))


async def end(identity: Identity) -> None:
    """SIGKILL a process, if the pid still means that one, and wait until it is gone."""
    handle = Handle.open(identity)
    if handle is not None:
        handle.send(signal.SIGKILL)
        await handle.until_exit()
        handle.collect()


def _environment(pid: str) -> list[bytes]:
    """The environment of a process, if we may read it."""
    patience = time.monotonic() + _EXEC_SECONDS
    try:
        while True:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if environment or time.monotonic() > patience:
                return environment.split(b"\0")
            # Neither environment nor arguments: the dead, the kernel's own threads, and whoever is
            # just about to become another program. Only the last are worth waiting for.
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
    # The second field is the program's name in brackets and may hold anything, brackets too.
    return text.rpartition(")")[2].split()
