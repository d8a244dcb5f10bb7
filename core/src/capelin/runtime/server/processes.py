"""Several processes that answer on the same ports: started, watched, stopped together."""

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

_STOP = (signal.SIGTERM, signal.SIGINT)
_SHORT_LIFE_SECONDS = 1.0
_LOOK_SECONDS = 1.0


class PortTakenError(Exception):
    """A place to listen that cannot be had."""


def listen(host: str, port: int, processes: int) -> list[socket.socket]:
    """One socket for each process, all on one port, among which the kernel divides connections.

    They are opened before any process starts: who takes over from a process that died finds what
    had queued up.

    Args:
        host: An address, or nothing for all of them.
        port: A port, or 0 for any that is free.
        processes: How many sockets.

    Raises:
        PortTakenError: the address or the port cannot be had.
    """
    everywhere = not host and socket.has_dualstack_ipv6()
    sockets: list[socket.socket] = []
    for _ in range(processes):
        try:
            opened = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if everywhere or ":" in host else socket.AF_INET,
                dualstack_ipv6=everywhere,
                # Alone, a process must not share its port with one that should have ended.
                reuse_port=processes > 1,
                backlog=1024,
            )
        except OSError as error:
            place = f"{host or 'any address'} port {port}"
            why = os.strerror(error.errno or 0)
            raise PortTakenError(
                f"cannot listen on {place} ({why}); say another with --host or --port"
            ) from None
        port = opened.getsockname()[1]
        sockets.append(opened)
    return sockets


class Processes:
    """Runs a function in several processes until told to stop, anew where one ends before."""

    def __init__(self, run: Callable[[int], None], count: int) -> None:
        self._run = run
        self._count = count
        self._running: dict[int, tuple[int, float]] = {}
        """The number and the start of each process, by pid."""
        self._stopping = False

    def supervise(self) -> int:
        """Start them and wait until all have ended; the exit code for this process."""
        # What is loaded by now is shared by all processes for as long as none writes to it, which
        # collecting garbage would.
        gc.collect()
        gc.freeze()
        for number in _STOP:
            signal.signal(number, self._stop)
        for index in range(self._count):
            self._start(index)
        code = 0
        while self._running:
            pid, status = os.wait()
            index, since = self._running.pop(pid)
            if self._stopping:
                continue
            ended = f"process {index} ended with {os.waitstatus_to_exitcode(status)}"
            if time.monotonic() - since < _SHORT_LIFE_SECONDS:
                _log.error("%s as soon as it had started; giving up", ended)
                code = 1
                self._stop(signal.SIGTERM)
            else:
                _log.error("%s; starting it anew", ended)
                self._start(index)
        return code

    def _start(self, index: int) -> None:
        # A signal in between would not reach the new process, which nobody knows yet.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
        pid = os.fork()
        if pid == 0:
            os._exit(self._in_new_process(index))
        self._running[pid] = (index, time.monotonic())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)

    def _in_new_process(self, index: int) -> int:
        for number in _STOP:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)
        try:
            self._run(index)
        except SystemExit as end:
            return int(end.code or 0)
        except BaseException:  # noqa: BLE001 - there is nobody above to tell
            _log.exception("process %s failed", index)
            return 1
        return 0

    def _stop(self, number: int, _frame: object = None) -> None:
        self._stopping = True
        for pid in self._running:
            os.kill(pid, number)


async def until_orphaned() -> None:
    """Wait until the process that started this one has gone."""
    parent = os.getppid()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if os.getppid() != parent:
            return
