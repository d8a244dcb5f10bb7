"""Go programs of an image, built for any architecture with a pinned toolchain, and checked."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from capelin.embedded.binaries import COMPONENTS
from capelin.errors import UnfitMachineError, UserError

from capelin_release.downloads import Downloads
from capelin_release.files import File, Layer, Package

# Where the linker puts the list of modules, between two marks.
_MODULES = re.compile(
    rb"0w\xaf\x0c\x92t\x08\x02A\xe1\xc1\x07\xe6\xd6\x18\xe6(.*?)"
    rb"\xf92C1\x86\x18 r\x00\x82B\x10A\x16\xd8\xf2",
    re.DOTALL,
)


class ProgramError(UserError):
    """A program was built, and is not the locked one."""


@dataclass(frozen=True, slots=True)
class LockedProgram:
    """A program of `capelin.embedded.binaries`, and what building it gives."""

    name: str
    version: str
    toolchain: str
    """The Go release to build with, as in `go1.26.8`. Another one gives other bytes."""
    sha256: dict[str, str]
    """The digest of the program for each architecture."""

    @classmethod
    def read(cls, name: str, file: Path | None = None) -> "LockedProgram":
        """A program of a lock file; of Capelin's own if none is given."""
        source = file or files("capelin_release") / "programs.lock"
        entry = tomllib.loads(source.read_text())["programs"][name]
        return cls(name, **entry)

    @property
    def package(self) -> Package:
        """The package of its file."""
        project = COMPONENTS[self.name].project
        url = f"pkg:golang/{project.sources[project.name]}@{self.version}"
        return Package("go", self.name, self.version, url, ("Apache-2.0",))


def program_layer(
    programs: list[LockedProgram], architecture: str, time: int, downloads: Downloads
) -> Layer:
    """A layer with programs in /usr/local/bin."""
    layer = Layer("programs", time)
    for program in programs:
        file = build(program, architecture, downloads)
        layer.add(f"usr/local/bin/{program.name}", File(program.package, 0o755, content=file))
    return layer


def build(program: LockedProgram, architecture: str, downloads: Downloads) -> Path:
    """The program for an architecture, from the cache or built.

    Raises:
        ProgramError: The result is not the locked one.
        UnfitMachineError: There is no Go.
    """
    digest = program.sha256[architecture]
    cached = downloads.folder / digest
    if cached.is_file() and _digest(cached) == digest:
        return cached
    downloads.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloads.folder) as folder:
        built = _go_build(program, architecture, Path(folder))
        actual = _digest(built)
        if actual != digest:
            raise ProgramError(
                f"{program.name} {program.version} for {architecture} was built with other bytes.",
                reason=f"Its SHA-256 is {actual}, and the lock file says {digest}.",
                hint="Is the toolchain a build of its own? The lock file names the Go release.",
            )
        built.replace(cached)
    return cached


def _go_build(program: LockedProgram, architecture: str, folder: Path) -> Path:
    go = shutil.which("go")
    if go is None:
        raise UnfitMachineError(
            f"{program.name} cannot be built.", reason="There is no go command on PATH."
        )
    component = COMPONENTS[program.name]
    for name in ("go.mod", "go.sum"):
        shutil.copy(component.project.module_files(program.version) / name, folder)
    built = folder / program.name
    # What the user has set for work in Go must not change the result.
    settings = {
        "CGO_ENABLED": "0",
        "GO111MODULE": "on",
        "GOAMD64": "v1",
        "GOARCH": architecture,
        "GOARM64": "v8.0",
        "GOEXPERIMENT": "",
        "GOFLAGS": "-mod=readonly",
        "GOOS": "linux",
        "GOTOOLCHAIN": program.toolchain,
        "GOWORK": "off",
    }
    stamps = component.project.linker_flags(program.version)
    flags = ("-trimpath", "-buildvcs=false", "-ldflags", stamps)
    command = (go, "build", *flags, "-o", built, component.package)
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **settings}, capture_output=True, check=False
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()[-8:]
        raise ProgramError(f"{program.name} cannot be built.", reason="\n".join(lines))
    return built


def go_modules(content: bytes) -> list[tuple[str, str]]:
    """The modules in a Go program with their versions, as the linker has listed them."""
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


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
