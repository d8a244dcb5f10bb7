"""Options of a program: each a flag, an environment variable and a line of --help at once.

The engine has a hundred lines. pydantic-settings would need a type for each reader, an alias for
each variable and a help formatter, and its errors name fields, not flags and variables.
"""

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")
ValueT = TypeVar("ValueT")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class OptionsError(ValueError):
    """Invalid options, or a combination that is not allowed. Lists all problems, one per line."""


def seconds(text: str) -> float:
    """A duration in the form of Kubernetes' flags: `10h`, `1m30s`, `250ms`, or plain seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h))+", text):
        raise ValueError(f'"{text}" is not a time (examples: 10h, 1m30s, 250ms)')
    parts: list[tuple[str, str]] = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def seconds_up_to(most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        if (value := seconds(text)) > most:
            raise ValueError(f'"{text}" is longer than {most:g} s')
        return value

    return read


def whole_number(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f'"{text}" is not a whole number')
    return int(text)


def number_from(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isdecimal() and least <= int(text) <= most):
            raise ValueError(f'"{text}" is not a number from {least} to {most}')
        return int(text)

    return read


def truth(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(f'"{text}" is neither true nor false')
    return text.lower() == "true"


def one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f'"{text}" is none of {", ".join(choices)}')
        return text

    return read


@dataclass(frozen=True, slots=True)
class _Flag:
    help: str
    read: Callable[[str], Any]
    shown: str
    short: str | None


def flag(
    default: ValueT,
    read: Callable[[str], ValueT],
    help: str,  # noqa: A002 - what argparse calls it
    *,
    shown: str | None = None,
    short: str | None = None,
) -> ValueT:
    """A field of options: its default, how to read it from text, and its line of --help.

    `shown` is the default as a user would write it. A flag with a `short` form, such as -v, counts.
    """
    flag = _Flag(help, read, shown if shown is not None else str(default), short)
    return dataclasses.field(default=default, metadata={"flag": flag})


def parse(
    options: type[T],
    program: str,
    description: str,
    arguments: Sequence[str],
    environ: Mapping[str, str] | None = None,
) -> T:
    """Read options from the command line, else from `CAPELIN_<FLAG>`, else use their defaults.

    Raises:
        OptionsError: An option is invalid, or options contradict each other.
    """
    kind: Any = options
    fields = dataclasses.fields(kind)
    flags = {field.name: cast("_Flag", field.metadata["flag"]) for field in fields}
    # Users pass `--namespace=` to Cluster API's providers to watch every namespace.
    optional = {field.name for field in fields if field.default is None}
    parser = argparse.ArgumentParser(
        program,
        description=description,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for field, flag in flags.items():
        _add(parser, field, flag)
    environ = os.environ if environ is None else environ
    given = cast("dict[str, str | int]", vars(parser.parse_args(arguments)))
    values: dict[str, Any] = {}
    problems: list[str] = []
    for field, flag in flags.items():
        source, text = _source(field, given, environ)
        if text is None or (not text and field in optional):
            continue
        try:
            values[field] = flag.read(text)
        except ValueError as error:
            problems.append(f"{source}: {error}")
    if problems:
        raise OptionsError("\n".join(problems))
    return kind(**values)


def report(program: str, error: OptionsError) -> None:
    """Show users what is wrong with their options."""
    sys.stderr.write("".join(f"{program}: {line}\n" for line in str(error).splitlines()))


def _source(
    field: str, given: Mapping[str, str | int], environ: Mapping[str, str]
) -> tuple[str, str | None]:
    if field in given:
        return _long(field), str(given[field])
    variable = _variable(field)
    return variable, environ.get(variable) or None


def _add(parser: argparse.ArgumentParser, field: str, flag: _Flag) -> None:
    explained = f"{flag.help} Default: {flag.shown}. [{_variable(field)}]".replace("%", "%%")
    if flag.short is not None:
        parser.add_argument(flag.short, _long(field), action="count", dest=field, help=explained)
    elif flag.read is truth:
        # Manifests use both `--leader-elect` and `--leader-elect=true`.
        parser.add_argument(
            _long(field), nargs="?", const="true", metavar="true|false", dest=field, help=explained
        )
    else:
        parser.add_argument(
            _long(field), metavar=field.rpartition("_")[2].upper(), dest=field, help=explained
        )


def _long(field: str) -> str:
    return "--" + field.replace("_", "-")


def _variable(field: str) -> str:
    return "CAPELIN_" + field.upper()
