"""Benchmarks: misses are marked, commands exist, and other pages quote results that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.__main__ import BENCHMARKS

from .test_code_blocks import PAGES, ROOT

FIGURES = ROOT / "docs" / "figures.md"
_QUANTITY = re.compile(r"([\d,]+(?:\.\d+)?) ?(min|ms|s|MiB|mCPU|times)?\b")
_QUOTED = re.compile(
    r"[\d,]*\d(?:\.\d+)?(?= (?:s|ms|min|MiB|GiB|mCPU|times|of \d)\b)|(?<=\d of )[\d,]*\d"
)
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0}


def results() -> Iterator[tuple[str, str, str]]:
    """The name, result and target of each row that has a target."""
    columns: list[str] = []
    for line in FIGURES.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if "target" in cells:
            columns = cells
        elif line.startswith("| ") and columns and cells[columns.index("target")]:
            yield cells[0], cells[1], cells[columns.index("target")]
        elif not line.startswith("|"):
            columns = []


def value(text: str) -> float:
    """A quantity such as `10 min 36 s`, in seconds or in its own unit."""
    return sum(
        float(number.replace(",", "")) * _SECONDS.get(unit, 1.0)
        for number, unit in _QUANTITY.findall(text.split(" of ", maxsplit=1)[0])
    )


def quoted(page: Path) -> Iterator[str]:
    """Numbers with a unit, in the sentences and table rows that link to the benchmarks."""
    for block in re.split(r"\n\n|\n(?=[|-])|\.\s", page.read_text()):
        if "figures.md" in block:
            yield from _QUOTED.findall(block)


def test_exactly_the_results_that_miss_their_target_are_bold() -> None:
    rows = list(results())
    assert len(rows) > 10
    wrong = [
        name
        for name, result, target in rows
        if ("**" in result) != (value(result.replace("**", "")) > value(target))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10 min 36 s", 636.0), ("up to 259 ms", 0.259), ("1,400 MiB", 1400.0), ("11 of 103,314", 11)],
)
def test_a_quantity_has_a_value(text: str, expected: float) -> None:
    assert value(text) == pytest.approx(expected)


def test_benchmarks_of_the_commands_exist() -> None:
    named = set(re.findall(r"`bench ([a-z]\w*)`", FIGURES.read_text()))
    assert named
    assert named <= set(BENCHMARKS)


def test_sessions_of_the_commands_exist() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    sessions = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) if node.decorator_list
    }
    named = {
        (page.name, name)
        for page in PAGES
        for names in re.findall(r"nox -s ((?:[a-z_\d]+ ?)+)", page.read_text())
        for name in names.split()
    }
    assert named
    assert {(page, name) for page, name in named if name not in sessions} == set()


def test_other_pages_quote_results_of_the_benchmarks() -> None:
    known = set(re.findall(r"\d[\d,]*(?:\.\d+)?", FIGURES.read_text()))
    pages = [page for page in PAGES if page.name not in {"figures.md", "notebook.md"}]
    found = [(page, number) for page in pages for number in quoted(page)]
    assert len(found) > 5
    assert [(page.name, number) for page, number in found if number not in known] == []


def test_the_start_page_shows_results_of_the_benchmarks() -> None:
    section = (ROOT / "README.md").read_text().split("## Measured\n")[1].split("\n## ")[0]
    table = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    known = FIGURES.read_text()
    numbers = _QUOTED.findall(table)
    assert len(numbers) > 5
    assert [number for number in numbers if number not in known] == []
