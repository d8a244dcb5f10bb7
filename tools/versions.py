"""Prints the versions of all programs, what is newest, and what is past support: `nox -s versions`.

The module folders are the list of versions: the product, the tests and the documents read it. Go
finds the newest version of each module. `versions.toml` has the ends of support.
"""

import asyncio
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from capelin.versions import Version
from capelin_embedded.binaries import BinariesError, Go, Platform, Project, find_go

from tools.pin_modules import PROJECTS, RECIPES

DATES: Final = Path(__file__).with_name("versions.toml")
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Row:
    """A version of a project."""

    project: str
    version: str
    newest: str
    """The newest version that Go finds, or the newest of the same minor version."""
    support: str

    def __str__(self) -> str:
        return f"| {self.project} | {self.version} | {self.newest} | {self.support} |"


def ends_of_support(path: Path = DATES) -> dict[str, dict[str, date]]:
    """For each project, the end of support of its minor versions."""
    return tomllib.loads(path.read_text())


def rows(project: Project, known: str, ends: Mapping[str, date], today: date) -> list[Row]:
    """The rows of a project.

    Args:
        project: The project with the versions that Capelin has.
        known: The versions that Go lists, separated by spaces.
        ends: The ends of support of minor versions.
        today: The day that decides what is past support.
    """
    stable = [it for it in known.split() if re.fullmatch(r"v\d+\.\d+\.\d+", it)]
    stable.sort(key=Version.parse)
    found: list[Row] = []
    for version in project.versions:
        minor = ".".join(version.removeprefix("v").split(".")[:2])
        # A project with several minor versions keeps each of them up to date.
        line = [it for it in stable if len(project.versions) == 1 or it.startswith(f"v{minor}.")]
        newest = line[-1] if line else "unknown"
        found.append(
            Row(
                project.title,
                version,
                "this one" if newest == version else newest,
                _support(ends.get(minor), today),
            )
        )
    return found


def _support(end: date | None, today: date) -> str:
    if end is None:
        return "no date known"
    return f"until {end}" if today <= end else f"**ended {end}**"


async def table(today: date) -> list[Row]:
    """The rows of all projects."""
    ends = ends_of_support()
    slots = asyncio.Semaphore(_AT_ONCE)
    with TemporaryDirectory() as folder:
        (Path(folder) / "go.mod").write_text("module capelin/versions\n\ngo 1.22\n")
        go = await find_go(
            Path(folder),
            what="the list of versions",
            environment=os.environ,
            platform=Platform.current(),
            note=lambda _: None,
        )

        async def rows_of(project: Project) -> list[Row]:
            async with slots:
                known = await _known(go, RECIPES[project.name].modules[0], Path(folder))
            return rows(project, known, ends.get(project.name, {}), today)

        found = await asyncio.gather(*(rows_of(PROJECTS[name]) for name in sorted(PROJECTS)))
    return [row for group in found for row in group]


async def _known(go: Go, module: str, folder: Path) -> str:
    try:
        return await go.run("list", "-m", "-versions", module, folder=folder)
    except BinariesError:
        return ""


def main() -> None:
    """Print the table."""
    try:
        found = asyncio.run(table(datetime.now(UTC).date()))
    except BinariesError as error:
        sys.exit(str(error))
    lines = ["| project | version | newest | support |", "|---|---|---|---|", *map(str, found)]
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
