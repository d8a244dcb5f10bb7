"""Lists for people and for programs: one table, whole where no terminal shows it, or data."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from capelin_cli.terminal.text import printable

RowT = TypeVar("RowT")

Format = Literal["text", "wide", "json", "yaml"]
"""How a list is printed: as a table with the columns that matter most or with all, or as data."""

_WIDE: Final = 10_000


@dataclass(frozen=True)
class Column(Generic[RowT]):
    """A column of a table."""

    title: str
    text: Callable[[RowT], str]
    wide: bool = False
    """Whether only `-o wide` shows it."""
    right: bool = False
    """Whether it holds numbers."""


def plain(text: str, style: str = "") -> Text:
    """Text of tenants without markup, in which control characters are visible."""
    return Text(printable(text), style)


def listing_console() -> Console:
    """A console for tables: whole where no terminal shows them, for programs read them then."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=_WIDE, highlight=False)


def print_list(
    rows: Sequence[RowT],
    columns: Sequence[Column[RowT]],
    data: Callable[[RowT], object],
    output: Format,
) -> None:
    """Print rows as a table, or what `data` makes of each of them."""
    if output in {"json", "yaml"}:
        print_data([data(row) for row in rows], output)
    else:
        listing_console().print(table_of(rows, columns, wide=output == "wide"))


def table_of(rows: Sequence[RowT], columns: Sequence[Column[RowT]], *, wide: bool = False) -> Table:
    """Rows as a table, with the columns that matter most or with all."""
    shown = [column for column in columns if wide or not column.wide]
    table = Table(box=None, pad_edge=False)
    for column in shown:
        # Where a cell is too narrow for a word, two that begin alike must not look the same.
        justify = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(plain(column.text(row)) for column in shown))
    return table


def print_data(value: object, output: Format) -> None:
    """Print a value for programs."""
    if output == "yaml":
        print(yaml.safe_dump(value, sort_keys=False), end="")  # noqa: T201 - asked for
    else:
        print(json.dumps(value, indent=2))  # noqa: T201 - asked for
