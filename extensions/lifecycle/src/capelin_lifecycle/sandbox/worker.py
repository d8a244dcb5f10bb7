"""The worker process: one task after the other, each with limits that the kernel enforces.

A task is a frame on the standard input, its result one on the standard output. A task that takes
more CPU time than it may ends the process, by a signal that nothing here handles: no code of the
interpreter or of a library has to cooperate. Memory that it may not have is not allocated.
"""

import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import orjson
import yaml
from capelin.yaml import read_all_untrusted_yaml

from capelin_lifecycle.sandbox.expressions import ExpressionError, compile_expression

TASK: Final = struct.Struct(">IdQ")
"""Before a task: its length, its CPU time in seconds, and its memory in bytes."""
RESULT: Final = struct.Struct(">I?")
"""Before a result: its length, and whether the process ends after it.

A result is empty if the task needs more memory than it may have."""
_MAX_RESULT: Final = 4 * 2**20
"""The main process reads this, and keeps it for as long as a step of the policy."""
_FILES: Final = 64


def main() -> None:
    """Work until the standard input ends."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _answer(b'{"questions": [["true", [], true]], "variables": {}}')
    own = _address_space()
    _write(target, b"", is_last=False)
    while len(header := source.read(TASK.size)) == TASK.size:
        length, seconds, memory = TASK.unpack(header)
        task = source.read(length)
        _limit_memory(own + memory if own else resource.RLIM_INFINITY)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        result = _answer(task)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _limit_memory(resource.RLIM_INFINITY)
        # The next task could not use the memory that the process keeps.
        is_last = _address_space() > own + memory // 2
        _write(target, result, is_last=is_last)
        if is_last:
            return


def _write(target: BinaryIO, result: bytes, *, is_last: bool) -> None:
    target.write(RESULT.pack(len(result), is_last))
    target.write(result)
    target.flush()


def _limit_memory(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


def _address_space() -> int:
    """Size of the process's address space. Zero if the system does not report it."""
    statm = Path("/proc/self/statm")
    pages = int(statm.read_text().split()[0]) if statm.exists() else 0
    return pages * resource.getpagesize()


def _answer(task: bytes) -> bytes:
    try:
        content = cast("dict[str, Any]", orjson.loads(task))
        if "manifests" in content:
            result = {"manifests": _manifests(content["manifests"])}
        elif "expressions" in content:
            asked = content["expressions"].items()
            problems = {field: _compile_problem(**question) for field, question in asked}
            result = {"problems": {field: text for field, text in problems.items() if text}}
        else:
            variables = content["variables"]
            answers = [_evaluated(question, variables) for question in content["questions"]]
            result = {"answers": answers}
        encoded = orjson.dumps(result)
    except MemoryError:
        return b""
    return encoded if len(encoded) <= _MAX_RESULT else b""


def _evaluated(question: tuple[str, list[str], bool], variables: dict[str, Any]) -> dict[str, Any]:
    """The value of an expression, or the problem with it."""
    text, names, boolean = question
    try:
        expression = compile_expression(text, tuple(names), boolean=boolean)
        value = expression.is_true(variables) if boolean else expression.evaluate(variables)
        # A value that JSON does not have is a problem of this expression only.
        return {"value": orjson.Fragment(orjson.dumps(value))}
    except ExpressionError as error:
        return {"problem": str(error)}
    except (TypeError, RecursionError):
        return {"problem": "it gives a value that JSON does not have"}


def _compile_problem(text: str, variables: list[str], *, boolean: bool) -> str:
    try:
        compile_expression(text, tuple(variables), boolean=boolean)
    except ExpressionError as error:
        return str(error)
    return ""


def _manifests(text: str) -> orjson.Fragment | None:
    """The documents of a text. None if parsers may not agree on it, or JSON lacks a value."""
    try:
        return orjson.Fragment(orjson.dumps(list(read_all_untrusted_yaml(text))))
    except (yaml.YAMLError, TypeError, ValueError, RecursionError):
        return None


if __name__ == "__main__":
    main()
