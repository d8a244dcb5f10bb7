"""Runs a program to its end, and ends it when its caller stops waiting."""

import asyncio
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ended:
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
) -> Ended:
    """Run a program without input, in this process's environment unless it gets another one.

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
            with suppress(ProcessLookupError):
                process.send_signal(ends_by)
            await process.wait()
    code = process.returncode
    assert code is not None  # noqa: S101
    return Ended(code, output, (errors or b"").decode(errors="replace").strip())
