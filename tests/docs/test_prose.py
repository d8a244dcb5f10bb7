"""Habits of unnatural English must not become more frequent.

A single match may be correct, but the total of an area stays below its ceiling. After a cleanup,
`python -m tests.docs.test_prose` prints lower ceilings.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PASSIVE = "asked|called|given|held|kept|left|made|refused|said|told"
HABITS = {
    "sentence that starts with 'What'": r"(?:^|[.:] )What (?!to )[a-z]",
    "'what is' instead of a noun": r"\b(?:of|for|with|to|from|in|on|is) what (?:is|was|are|it)\b",
    "'nobody', 'somebody', 'whoever'": r"\b(?:nobody|somebody|whoever)\b",
    "'anew', 'beside', 'be had', 'mend'": r"\b(?:anew|beside|be had|mend(?:s|ed|ing)?)\b",
    "'go on' instead of continue": r"\b(?:go|goes|going|gone|went) on\b",
    "'is there' instead of exists": r"\b(?:is|are|was|were) (?:not |still |yet )*there\b",
    "objects that say or know": r"\b(?:says|said|tells|told|knows)\b",
    "'is no' instead of is not a": r"\b(?:is|are) no (?!longer\b|more\b)[a-z]+",
    "passive without an actor": rf"\b(?:is|are|was|were|be|been) (?:{_PASSIVE})\b",
}
_HABITS = {name: re.compile(pattern, re.MULTILINE) for name, pattern in HABITS.items()}
_FOLDERS = (
    *("cli", "core", "docs", "embedded", "examples", "extensions"),
    *("infra", "providers", "tests", "tools"),
)
_PYTHON = re.compile(r'"""(.*?)"""|#:? ([^\n]*)|def (test_\w+)', re.DOTALL)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
CEILINGS = {
    "cli": 0,
    "cli, tests": 1,
    "core": 4,
    "core, tests": 0,
    "docs": 19,
    "embedded": 1,
    "embedded, tests": 0,
    "examples": 0,
    "examples, tests": 0,
    "extensions": 0,
    "extensions, tests": 0,
    "infra": 0,
    "infra, tests": 0,
    "providers": 0,
    "providers, tests": 3,
    "tests": 4,
    "tools": 4,
    "tools, tests": 5,
}


def _files() -> Iterator[tuple[str, Path]]:
    for path in ROOT.glob("*.md"):
        yield "docs", path
    for folder in _FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".md", ".py"} and path != Path(__file__):
                in_tests = "tests" in path.relative_to(ROOT).parts[1:]
                yield f"{folder}, tests" if in_tests else folder, path


def prose(path: Path) -> str:
    """The text of a page, or the comments, docstrings and test names of a module."""
    text = path.read_text()
    if path.suffix == ".md":
        return _CODE.sub("CODE", text)
    return "\n".join(
        name.replace("_", " ") or comment or docstring
        for docstring, comment, name in _PYTHON.findall(text)
    )


def habits_of(text: str) -> Counter[str]:
    return Counter({name: len(pattern.findall(text)) for name, pattern in _HABITS.items()})


def counts() -> dict[str, Counter[str]]:
    totals: dict[str, Counter[str]] = {}
    for area, path in _files():
        totals.setdefault(area, Counter()).update(habits_of(prose(path)))
    return totals


@pytest.mark.parametrize(
    ("text", "habit"),
    [
        ("What is left goes away.", "sentence that starts with 'What'"),
        ("It waits until nobody writes.", "'nobody', 'somebody', 'whoever'"),
        ("test the provider goes on", "'go on' instead of continue"),
        ("The Secret is not there.", "'is there' instead of exists"),
        ("The API server is asked again.", "passive without an actor"),
    ],
)
def test_an_unnatural_sentence_matches_its_habit(text: str, habit: str) -> None:
    assert habits_of(text)[habit] == 1


def test_a_natural_sentence_matches_no_habit() -> None:
    text = "If the Secret is missing, the provider creates it again and continues."
    assert habits_of(text).total() == 0


def test_prose_contains_comments_docstrings_and_test_names(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""A docstring."""\nx = "text"  # A comment.\ndef test_a_name(): ...\n')
    assert prose(module) == "A docstring.\nA comment.\ntest a name"


def test_habits_do_not_exceed_their_ceilings() -> None:
    totals = counts()
    assert totals.keys() == CEILINGS.keys()
    above = {
        area: dict(habits.most_common())
        for area, habits in totals.items()
        if habits.total() > CEILINGS[area]
    }
    assert above == {}


if __name__ == "__main__":
    for area, habits in sorted(counts().items()):
        print(f'    "{area}": {habits.total()},')  # noqa: T201
