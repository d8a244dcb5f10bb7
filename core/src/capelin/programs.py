"""Runs a program to its end, and ends it when its caller stops waiting."""

import asyncio
import resource
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_GRACE_SECONDS: Final = 10.0
"""How long a program may clean up after the signal."""
_ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""A child inherits ignored signals, and could not be ended by them.

SIGHUP is not one of them: `nohup` ignores it for all descendants, which have to survive a terminal.
"""


def raise_file_limit() -> None:
    """Allow this process as many open files as the system permits.

    Each supervised process and each connection needs one. The usual limit of 1,024 is for programs
    that call `select`.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The result of a program."""

    code: int
    """Its exit code, or the negative number of the signal that ended it."""
    output: bytes
    errors: str
    """The text that it wrote to its standard error, without surrounding spaces."""


async def run_program(
    *command: str | Path,
    env: Mapping[str, str] | None = None,
    keeps_errors: bool = True,
    ends_by: signal.Signals = signal.SIGKILL,
) -> ProgramResult:
    """Run a program without input, with this process's environment by default.

    Args:
        command: The program and its arguments.
        env: Its environment.
        keeps_errors: Whether the result contains its errors. Otherwise the user sees them at once.
        ends_by: The signal that ends it when the caller is cancelled.

    Raises:
        OSError: It cannot be started.
    """
    starting = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            _Program,
            *command,
            env=env,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE if keeps_errors else None,
            preexec_fn=default_signals(),
        )
    )
    try:
        # The program may run before its pipes are connected, and a cancelled start would kill it.
        transport, program = await asyncio.shield(starting)
        await asyncio.shield(program.ended)
    except asyncio.CancelledError:
        await _end(starting, ends_by)
        raise
    transport.close()
    code = transport.get_returncode()
    assert code is not None  # noqa: S101
    errors = program.written[2].decode(errors="replace").strip()
    return ProgramResult(code, bytes(program.written[1]), errors)


def default_signals() -> Callable[[], None] | None:
    """The function that gives a new child the default handling of the signals that end it.

    A shell without job control ignores SIGINT for its background jobs. In other processes no signal
    is ignored, and the child runs no Python code between fork and exec.
    """
    ignored = [it for it in _ENDING_SIGNALS if signal.getsignal(it) is signal.SIG_IGN]
    if not ignored:
        return None

    def restore() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)

    return restore


class _Program(asyncio.SubprocessProtocol):
    """Collects the output of a program until it has ended and closed its pipes."""

    def __init__(self) -> None:
        self.written = {1: bytearray(), 2: bytearray()}
        self.ended = asyncio.get_running_loop().create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.written[fd] += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.ended.set_result(None)


async def _end(
    starting: asyncio.Future[tuple[asyncio.SubprocessTransport, _Program]], by: signal.Signals
) -> None:
    with suppress(OSError):
        transport, program = await asyncio.shield(starting)
        try:
            with suppress(ProcessLookupError):
                transport.send_signal(by)
            await asyncio.wait([program.ended], timeout=_GRACE_SECONDS)
        finally:
            # It kills a program that still runs. A child of the program may keep the pipes open.
            transport.close()
