"""Runs a program to its end, and ends it when its caller stops waiting."""

import asyncio
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_GRACE_SECONDS: Final = 10.0
"""How long a program may clean up after the signal."""


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
    process = await asyncio.create_subprocess_exec(
        *command, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE if keeps_errors else None
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            await _end(process, ends_by)
    code = process.returncode
    assert code is not None  # noqa: S101
    return ProgramResult(code, output, (errors or b"").decode(errors="replace").strip())


async def _end(process: asyncio.subprocess.Process, by: signal.Signals) -> None:
    """End a program, and read the rest of its output, since a full pipe would stop it.

    A child of the program may keep the pipes open, so the wait has a limit.
    """
    try:
        _send(process, by)
        async with asyncio.timeout(_GRACE_SECONDS):
            await process.communicate()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            _send(process, signal.SIGKILL)


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
