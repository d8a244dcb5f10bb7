"""The layers of Python packages: wheels locked in uv.lock, and a project's own, only unpacked."""

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from capelin.errors import UnfitMachineError, UserError
from packaging.markers import Environment
from packaging.pylock import Package as LockedPackage
from packaging.pylock import (
    PackageArchive,
    PackageDirectory,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockValidationError,
)
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from capelin_release.downloads import Downloads, Pinned
from capelin_release.files import File, Layer, Package
from capelin_release.oci import sha256_of

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# Debian 12 has glibc 2.36. Wheels for 2.4 and older are named by years only.
_GLIBC = range(36, 4, -1)
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


class WheelError(UserError):
    """A Python package cannot be put into an image."""


@dataclass(frozen=True, slots=True)
class Target:
    """The Python that wheels are for."""

    architecture: str
    python: str
    """Such as `3.11.2`."""

    @property
    def minor(self) -> str:
        """Such as `3.11`."""
        return self.python.rpartition(".")[0]

    @property
    def packages_folder(self) -> str:
        """Where Debian's Python looks for packages that Debian did not make."""
        return f"usr/local/lib/python{self.minor}/dist-packages"

    def markers(self) -> Environment:
        """The environment that markers are evaluated in."""
        return {
            "implementation_name": "cpython",
            "implementation_version": self.python,
            "os_name": "posix",
            "platform_machine": _MACHINES[self.architecture],
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": self.python,
            "python_version": self.minor,
            "sys_platform": "linux",
        }

    def tags(self) -> list[Tag]:
        """The wheels that fit, the best first."""
        machine = _MACHINES[self.architecture]
        platforms: list[str] = []
        for minor in _GLIBC:
            platforms.append(f"manylinux_2_{minor}_{machine}")
            if minor in _LEGACY:
                platforms.append(f"{_LEGACY[minor]}_{machine}")
        platforms.append(f"linux_{machine}")
        major, minor = map(int, self.minor.split("."))
        interpreter = f"cp{major}{minor}"
        return [
            *cpython_tags((major, minor), [interpreter], platforms),
            *compatible_tags((major, minor), interpreter, platforms),
        ]


@dataclass(frozen=True, slots=True)
class Requirements:
    """A package and all of its dependencies, from the project's lock file."""

    folders: Mapping[str, Path]
    """Packages that are built from a folder, by name: the project's own, and path sources."""
    wheels: Sequence[Pinned]
    """The wheels of others that fit best, by name."""


def locked_requirements(
    project: Path, package: str, target: Target, downloads: Downloads
) -> Requirements:
    """The dependencies of a project's package on a target. Wheels of folders are copied."""
    folders: dict[str, Path] = {}
    wheels: list[Pinned] = []
    for locked, choice in select(_export(project, package), target):
        match choice:
            case PackageDirectory(path=str(path)):
                folders[locked.name] = Path(os.path.normpath(project / path))
            case PackageWheel() | PackageArchive():
                place = choice.url or (project / str(choice.path)).as_uri()
                wheels.append(_pinned(locked, place, choice.hashes, downloads))
            case _:
                raise _no_wheel(locked)
    return Requirements(folders, sorted(wheels, key=lambda wheel: wheel.name))


def anchor_paths(lock: Path, checkout: Path) -> None:
    """Have a copy of a uv.lock name folders beside the checkout by their full paths."""

    def anchored(match: re.Match[str]) -> str:
        return f'= "{os.path.normpath(checkout / match[1])}"'

    if lock.exists():
        lock.write_text(re.sub(r'= "(\.\.(?:/[^"]*)?)"', anchored, lock.read_text()))


def _export(project: Path, package: str) -> Mapping[str, Any]:
    """The pylock.toml of a package."""
    # uv interprets its own lock file with extras, markers and forks.
    options = ("--frozen", "--quiet", "--format=pylock.toml", "--no-default-groups")
    done = _run_uv("export", *options, "--no-editable", f"--package={package}", folder=project)
    if done.returncode == 0:
        return tomllib.loads(done.stdout)
    raise WheelError(
        f"uv.lock does not lead to all that {package} needs.",
        reason=done.stderr.strip(),
        hint="Run uv lock, and commit uv.lock.",
    )


def select(lock: Mapping[str, Any], target: Target) -> list[tuple[LockedPackage, object]]:
    """The packages of a pylock.toml for a target, each with the distribution that fits best."""
    try:
        return [*Pylock.from_dict(lock).select(environment=target.markers(), tags=[*target.tags()])]
    except PylockSelectError as error:
        raise WheelError(
            f"Not all packages have a wheel for {target.architecture} and Python {target.minor}.",
            reason=str(error),
            hint="Choose versions that have, or leave that architecture out.",
        ) from error
    except PylockValidationError as error:
        raise WheelError(
            "uv exports a lock file without all hashes.",
            reason=str(error),
            hint="Use a newer uv, or an index that has hashes.",
        ) from error


def _pinned(
    package: LockedPackage, url: str, hashes: Mapping[str, str], downloads: Downloads
) -> Pinned:
    """A wheel by its URL."""
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if path.suffix != ".whl":
        raise _no_wheel(package)
    if (digest := hashes.get("sha256")) is None:
        raise WheelError(f"uv.lock has no SHA-256 of {url}.", hint="Use an index that has it.")
    if parts.scheme != "file":
        return Pinned(path.name, digest, (url,))
    wheel = downloads.add(path.name, path.read_bytes())
    if wheel.sha256 != digest:
        raise WheelError(
            f"{path} is not the wheel that uv.lock names.",
            reason=f"Its SHA-256 is {wheel.sha256}, and uv.lock says {digest}.",
            hint="Run uv lock again.",
        )
    return wheel


def _no_wheel(package: LockedPackage) -> WheelError:
    return WheelError(f"{package.name} {package.version} has no wheel that fits.")


def build_wheels(folder: Path, out: Path, time: int, *options: str) -> list[Path]:
    """Build packages with uv; the wheels that are in the folder `out` afterwards."""
    command = ("build", "--quiet", "--no-create-gitignore", *options, f"--out-dir={out}")
    done = _run_uv(*command, folder=folder, SOURCE_DATE_EPOCH=str(time))
    if done.returncode == 0:
        return sorted(out.glob("*.whl"))
    raise WheelError(
        f"{folder} has no Python package that can be built.", reason=done.stderr.strip()
    )


def _run_uv(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run uv with its cache alone, and with the network only if that fails.

    The first run needs the network: for wheels of which uv.lock has no hash, and for the build
    backend, which is pinned so that later runs find it in the cache.
    """
    if shutil.which("uv") is None:
        raise UnfitMachineError("uv is not installed.", hint="Run pip install uv.")
    done: subprocess.CompletedProcess[str]
    for offline in (["--offline"], []):
        done = subprocess.run(
            ["uv", *offline, *arguments],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
        if done.returncode == 0:
            break
    return done


def package_of(wheel: Path) -> str:
    """The name of the package in a wheel."""
    return parse_wheel_filename(wheel.name)[0]


def license_of(wheel: Path) -> str:
    """The licence of a wheel's package, as it says itself; empty if it does not say."""
    with zipfile.ZipFile(wheel) as archive:
        info = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return str(message_from_bytes(archive.read(info)).get("License-Expression") or "")


def add_wheel(layer: Layer, wheel: Path, target: Target) -> None:
    """Unpack a wheel. It leaves out scripts: programs start as modules."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        folder = info.removesuffix("METADATA")
        package = _package(archive.read(info), sha256_of(wheel))
        record = _read_record(archive.read(f"{folder}RECORD").decode())
        for name in names:
            content = archive.read(name)
            path = _installed(name)
            if path is None or path.endswith(".pyc"):
                continue
            if record.get(name) not in {None, _record_hash(content)}:
                raise WheelError(f"{package.name}: {name} does not match its RECORD.")
            layer.add(f"{target.packages_folder}/{path}", File(package, 0o644, content=content))


def _installed(name: str) -> str | None:
    """Path of a wheel's file below the packages' folder. None leaves it out."""
    if ".." in name.split("/") or name.startswith("/"):
        raise WheelError(f"A wheel has a file outside of itself: {name}.")
    first, _, rest = name.partition("/")
    if not first.endswith(".data"):
        return name
    scheme, _, path = rest.partition("/")
    return path if scheme in {"purelib", "platlib"} else None


def _package(metadata: bytes, digest: str) -> Package:
    fields = message_from_bytes(metadata)
    name, version = canonicalize_name(str(fields["Name"])), str(fields["Version"])
    return Package(
        "wheel", name, version, f"pkg:pypi/{name}@{quote(version)}", _licenses(fields), digest
    )


def _licenses(fields: Message) -> tuple[str, ...]:
    if expression := fields.get("License-Expression"):
        return (str(expression),)
    classifiers = [
        str(value)
        for key, value in fields.items()
        if key == "Classifier" and str(value).startswith("License ::")
    ]
    if classifiers:
        return tuple(sorted(value.rpartition(":: ")[2] for value in classifiers))
    text = str(fields.get("License") or "")
    # Some packages have the whole licence there.
    return (text,) if 0 < len(text) < 60 else ()


def _read_record(text: str) -> Mapping[str, str]:
    return {row[0]: row[1] for row in csv.reader(io.StringIO(text)) if len(row) > 1 and row[1]}


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
