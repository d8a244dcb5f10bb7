"""Runs a verb: errors for people, and exit codes for scripts."""

import asyncio
import errno
import io
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

import typer

from capelin_cli.terminal.text import as_invoked

ResultT = TypeVar("ResultT")

EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 failed, 2 invalid command line, 3 this machine lacks something (see "
    "capelin doctor), 4 no such environment or cluster, 5 another command is changing it, 6 timed "
    "out, 7 a hook blocks its caller, 130 interrupted."
)
INTERRUPTED: Final = 130

# A disk or a folder that cannot be written is not a defect of Capelin.
_MACHINE_ERRORS: Final = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}

_state = {"traces": False}


def show_traces(enabled: bool) -> None:
    """Whether an error comes with its trace."""
    _state["traces"] = enabled


def run(
    work: Coroutine[Any, Any, ResultT], *, interrupted: str | Callable[[], str] = ""
) -> ResultT:
    """Do asynchronous work. On Ctrl-C, print the state of that work."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        typer.echo("", err=True)
        text = interrupted if isinstance(interrupted, str) else interrupted()
        typer.echo(as_invoked(f"Interrupted. {text}".rstrip()), err=True)
        raise typer.Exit(INTERRUPTED) from None


def confirm(question: str, *, yes: bool) -> bool:
    """Whether the user agrees. Without a terminal, only `--yes` confirms."""
    if yes:
        return True
    if not sys.stdin.isatty():
        from capelin.errors import InvalidInputError

        raise InvalidInputError(
            question, reason="The input is not a terminal.", hint="Add --yes, or use a terminal."
        )
    return typer.confirm(question)


def guard(app: Callable[[], object]) -> NoReturn:
    """Run the command line, and end with a message and a code whatever happens."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without our marks shows others in their place.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except Exception as error:  # noqa: BLE001 - the last one to ask
        if _state["traces"]:
            traceback.print_exception(error)
        message, code = explained(error)
        typer.echo(message, err=True)
        sys.exit(code)
    sys.exit(0)


def explained(error: Exception) -> tuple[str, int]:
    """The text that people see for an error, and the exit code."""
    text, code = _explained(error)
    return as_invoked(text), code


def _explained(error: Exception) -> tuple[str, int]:
    from capelin.client import ClientError
    from capelin.errors import UserError
    from capelin_embedded.binaries import BinariesError, UnknownComponentError

    match error:
        case UserError():
            return _text(error.message, error.reason, error.hint), error.exit_code
        case UnknownComponentError():
            return _text(str(error)), 2
        case BinariesError():
            return _text(str(error), "Run capelin doctor to see what this machine lacks."), 3
        case ClientError():
            return _text("Request failed.", str(error), "See capelin status."), 1
        case OSError(errno=code) if code in _MACHINE_ERRORS:
            where = f": {error.filename}" if error.filename else ""
            hint = "Run capelin doctor to see what this machine lacks."
            return _text(f"{error.strerror}{where}.", hint), 3
        case _:
            text = f"{type(error).__name__}: {error}"
            hint = "Please report it, with the output of capelin -v."
            return _text(text, "This is a defect of Capelin.", hint), 1


def _text(*lines: str) -> str:
    return "Error: " + "\n  ".join(filter(None, lines))
