"""Compares the lines of each room with its budget: `python -m tools.budgets`.

`budgets.toml` has the rooms. `--lower` writes the present lines of rooms that have become smaller.
"""

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
BUDGETS: Final = Path(__file__).with_name("budgets.toml")


@dataclass(frozen=True, slots=True)
class Room:
    """A part of the repository with a budget."""

    name: str
    most: int
    goal: int
    lines: int

    def __str__(self) -> str:
        return f"{self.name:14} {self.lines:7} {self.most:7} {self.goal:7}"


def room_of(path: str, rooms: dict[str, dict[str, Any]]) -> str:
    """The room of a file. Tests are one room, wherever they are."""
    if "tests" in PurePosixPath(path).parts:
        return "tests"
    for name, room in rooms.items():
        if _is_in(path, room["folders"]) and not _is_in(path, room.get("without", [])):
            return name
    raise ValueError(f"{path} belongs to no room of {BUDGETS.name}")


def _is_in(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def measured(rooms: dict[str, dict[str, Any]]) -> list[Room]:
    """Each room with the lines that it has now."""
    command = ("git", "ls-files", "-co", "--exclude-standard", "*.py")
    files = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    lines = dict.fromkeys(rooms, 0)
    for path in files:
        file = ROOT / path
        if file.exists():
            lines[room_of(path, rooms)] += file.read_bytes().count(b"\n")
    return [Room(name, room["most"], room["goal"], lines[name]) for name, room in rooms.items()]


def lowered(text: str, rooms: list[Room]) -> str:
    """The budgets, with the lines of rooms that have become smaller."""
    sections = text.split("\n[")
    for number, section in enumerate(sections):
        for room in rooms:
            if section.startswith(f"{room.name}]") and room.lines < room.most:
                sections[number] = re.sub(r"(?m)^most = .*$", f"most = {room.lines:_}", section)
    return "\n[".join(sections)


def main() -> None:
    """Print the table, and fail if a room has too many lines."""
    rooms = measured(tomllib.loads(BUDGETS.read_text()))
    table = [f"{'room':14} {'lines':>7} {'most':>7} {'goal':>7}", *map(str, rooms)]
    sys.stdout.write("".join(f"{line}\n" for line in table))
    if "--lower" in sys.argv[1:]:
        BUDGETS.write_text(lowered(BUDGETS.read_text(), rooms))
        return
    above = [room.name for room in rooms if room.lines > room.most]
    if above:
        sys.exit(
            f"Too many lines: {', '.join(above)}. Remove others, or raise the number with a"
            " reason in the commit."
        )


if __name__ == "__main__":
    main()
