"""Go programs of an image, built for any architecture with a pinned toolchain, and checked."""

import asyncio
import hashlib
import os
import re
import shutil
import tempfile
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from capelin.errors import UserError
from capelin_embedded.binaries import (
    COMPONENTS,
    BinariesError,
    Platform,
    build_arguments,
    find_go,
)

from capelin_release.downloads import Downloads
from capelin_release.files import Package
from capelin_release.oci import sha256_of

# Where the linker puts the list of modules, between two marks.
_MODULES = re.compile(
    rb"0w\xaf\x0c\x92t\x08\x02A\xe1\xc1\x07\xe6\xd6\x18\xe6(.*?)"
    rb"\xf92C1\x86\x18 r\x00\x82B\x10A\x16\xd8\xf2",
    re.DOTALL,
)


_MODULE_FILES = ("go.mod", "go.sum")


class ProgramError(UserError):
    """A program cannot be built, or is not the locked one."""


@dataclass(frozen=True, slots=True)
class LockedProgram:
    """A program of `capelin_embedded.binaries`, and the digests of its builds."""

    name: str
    version: str
    toolchain: str
    """The Go release to build with, such as `go1.26.8`. Another one produces other bytes."""
    modules: str
    """The digest of the pinned `go.mod` and `go.sum` that it was built with."""
    sha256: dict[str, str]
    """The digest of the program for each architecture."""

    @classmethod
    def read(cls, name: str) -> "LockedProgram":
        """A program of Capelin's own lock file."""
        return cls(name, **_lock()[name])

    @classmethod
    def read_all(cls) -> "list[LockedProgram]":
        """All programs of the lock file."""
        return [cls(name, **fields) for name, fields in _lock().items()]

    @property
    def module_files(self) -> Path:
        """The folder with its pinned `go.mod` and `go.sum`."""
        return COMPONENTS[self.name].project.module_files(self.version)

    @property
    def present_modules(self) -> str:
        """The digest of the present `go.mod` and `go.sum`."""
        content = b"".join((self.module_files / name).read_bytes() for name in _MODULE_FILES)
        return hashlib.sha256(content).hexdigest()

    @property
    def package(self) -> Package:
        """The package of its file."""
        component = COMPONENTS[self.name]
        project = component.project
        module = project.sources.get(project.name, component.package)
        url = f"pkg:golang/{module}@{self.version}"
        return Package("go", self.name, self.version, url, ("Apache-2.0",))


def _lock() -> dict[str, dict[str, Any]]:
    lock = tomllib.loads((files("capelin_release") / "programs.lock").read_text())
    return cast("dict[str, dict[str, Any]]", lock["programs"])


def build(program: LockedProgram, architecture: str, downloads: Downloads) -> Path:
    """The program for an architecture, from the cache or built."""
    digest = program.sha256[architecture]
    if cached := downloads.cached(digest):
        return cached
    with tempfile.TemporaryDirectory(dir=downloads.folder) as folder:
        try:
            built = asyncio.run(_go_build(program, architecture, Path(folder)))
        except BinariesError as error:
            raise ProgramError(f"{program.name} cannot be built.", reason=str(error)) from error
        actual = sha256_of(built)
        if actual != digest:
            raise ProgramError(
                f"{program.name} {program.version} for {architecture} was built with other bytes.",
                reason=f"Its SHA-256 is {actual}, but the lock file has {digest}.",
                hint="Is the toolchain a build of its own? The lock file names the Go release.",
            )
        return built.replace(downloads.folder / digest)


async def _go_build(program: LockedProgram, architecture: str, folder: Path) -> Path:
    component = COMPONENTS[program.name]
    project = component.project
    sources = program.module_files
    for name in _MODULE_FILES:
        shutil.copy(sources / name, folder)
    go = await find_go(
        sources,
        what=program.name,
        # Any installed Go will do: it fetches the pinned release.
        environment={**os.environ, "GOTOOLCHAIN": f"{program.toolchain}+auto"},
        platform=Platform("linux", architecture),
        note=lambda _: None,
    )
    # The settings that change the bytes, whatever the user has set for work in Go.
    settings = {
        "GOAMD64": "v1",
        "GOARM64": "v8.0",
        "GOEXPERIMENT": "",
        "GOTOOLCHAIN": program.toolchain,
    }
    out = folder / "out"
    command = build_arguments(project, program.version, [component], out)
    await go.run(*command, folder=folder, environment=settings)
    return next(out.iterdir())


def go_modules(content: bytes) -> list[tuple[str, str]]:
    """The modules in a Go program with their versions, from the linker's list."""
    match = _MODULES.search(content)
    if match is None:
        return []
    modules: list[tuple[str, str]] = []
    for line in match[1].decode().splitlines():
        kind, *fields = line.split("\t")
        if kind == "=>" and modules:
            modules[-1] = (fields[0], fields[1])
        elif kind == "dep":
            modules.append((fields[0], fields[1]))
    return modules
