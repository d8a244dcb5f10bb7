"""Running a verb: what people see when it fails, and the exit code that scripts see."""

import asyncio
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

import typer

ResultT = TypeVar("ResultT")

EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 failed; 2 the command line makes no sense; 3 this machine lacks "
    "something (see capelin doctor); 4 no such environment or cluster; 5 another command is at "
    "work on it; 6 it did not happen in time; 7 a hook holds its caller back; 130 interrupted."
)
INTERRUPTED: Final = 130

_CODES: Final = {
    "BadInputError": 2,
    "UnfitMachineError": 3,
    "MissingError": 4,
    "BusyError": 5,
    "TooSlowError": 6,
}

_state = {"traces": False}


def show_traces(wanted: bool) -> None:
    """Whether an error comes with its trace."""
    _state["traces"] = wanted


def run(work: Coroutine[Any, Any, ResultT], *, interrupted: str = "") -> ResultT:
    """Do asynchronous work; on Ctrl-C say how things stand now."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        typer.echo("", err=True)
        typer.echo(f"Interrupted. {interrupted}".rstrip(), err=True)
        raise typer.Exit(INTERRUPTED) from None


def guard(app: Callable[[], object]) -> NoReturn:
    """Run the command line, and end with a message and a code whatever happens."""
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
    """What people are told of an error, and the exit code."""
    from capelin.client import ClientError
    from capelin.embedded.binaries import BinariesError, UnknownProgramError
    from capelin.embedded.management.problems import ProblemError

    match error:
        case ProblemError():
            text = f"{error.what}\n  {error.why}\n  {error.remedy}"
            return f"Error: {text}", _CODES.get(type(error).__name__, 1)
        case UnknownProgramError():
            return f"Error: {error}", 2
        case BinariesError():
            return f"Error: {error}\n  capelin doctor says what this machine lacks.", 3
        case ClientError():
            text = f"The management cluster did not do it.\n  {error}\n  See capelin status."
            return f"Error: {text}", 1
        case _:
            text = f"{type(error).__name__}: {error}\n  This is a defect of Capelin."
            return f"Error: {text}\n  Please report it, with what capelin -v shows.", 1
