"""The reasons of conditions: each that is given is in the README, and the other way round."""

import re
from pathlib import Path

from capelin_control_plane import status

ROOT = Path(__file__).parents[1]
SOURCES = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))


def constants() -> dict[str, str]:
    """Those that have a name: what stands below the types of conditions."""
    _, below = Path(status.__file__).read_text().split("# Reasons", 1)
    return dict(re.findall(r'^([A-Z_]+) = "(\w+)"$', below, re.MULTILINE))


def of_problems() -> set[str]:
    return set(re.findall(r'Blocked\(\s*"(\w+)"', SOURCES))


def documented() -> set[str]:
    _, after = (ROOT / "README.md").read_text().split("| reason | says |", 1)
    rows = after.partition("\n\n")[0].strip().splitlines()
    return {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row.split("|")[1])}


def test_every_reason_is_documented_and_every_documented_one_is_given() -> None:
    assert documented() == {*constants().values(), *of_problems()}


def test_every_reason_with_a_name_is_given() -> None:
    assert [name for name in constants() if len(re.findall(rf"\b{name}\b", SOURCES)) < 2] == []
