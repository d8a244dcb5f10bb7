"""The layers of Python packages: wheels locked in uv.lock, and a project's own, only unpacked."""

import base64
import csv
import hashlib
import io
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from capelin.errors import UserError
from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from capelin_release.downloads import Downloads, Pinned
from capelin_release.files import File, Layer, Package

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
    """As in `3.11.2`."""

    @property
    def minor(self) -> str:
        """As in `3.11`."""
        return self.python.rpartition(".")[0]

    @property
    def packages_folder(self) -> str:
        """Where Debian's Python looks for packages that Debian did not make."""
        return f"usr/local/lib/python{self.minor}/dist-packages"

    def markers(self) -> dict[str, str]:
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
            "extra": "",
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


def locked_wheels(lock: Path, roots: Sequence[str], target: Target) -> list[Pinned]:
    """The wheels that `roots` need beyond the workspace's own packages, by name.

    Raises:
        WheelError: The lock file does not have a package, or no wheel of it fits.
    """
    packages = _Packages(tomllib.loads(lock.read_text()), lock, target)
    names = packages.closure(roots)
    return [packages.wheel(name) for name in names if not packages.is_local(name)]


def own_packages(lock: Path, roots: Sequence[str], target: Target) -> list[str]:
    """The names of the workspace's packages that `roots` need."""
    packages = _Packages(tomllib.loads(lock.read_text()), lock, target)
    return [name for name in packages.closure(roots) if packages.is_local(name)]


class _Packages:
    """The entries of a uv.lock."""

    def __init__(self, content: Mapping[str, Any], file: Path, target: Target) -> None:
        self._file, self._target = file, target
        self._environment = target.markers()
        self._tags = {tag: rank for rank, tag in reversed([*enumerate(target.tags())])}
        self._by_name: dict[str, dict[str, Any]] = {}
        for entry in content["package"]:
            markers = entry.get("resolution-markers", [])
            # A package that is locked in several versions has one for each kind of environment.
            if not markers or any(self._holds(marker) for marker in markers):
                self._by_name[entry["name"]] = entry

    def closure(self, roots: Iterable[str]) -> list[str]:
        """Names of packages and of all that they need here, sorted."""
        done: set[tuple[str, str]] = set()
        waiting = [(canonicalize_name(root), "") for root in roots]
        while waiting:
            name, extra = waiting.pop()
            if (name, extra) in done:
                continue
            done.add((name, extra))
            entry = self._entry(name)
            needed = (
                entry.get("optional-dependencies", {}).get(extra, [])
                if extra
                else entry.get("dependencies", [])
            )
            for dependency in cast("list[dict[str, Any]]", needed):
                if self._holds(dependency.get("marker", "")):
                    extras = dependency.get("extra", [])
                    waiting += [(dependency["name"], name) for name in ("", *extras)]
        return sorted({name for name, _ in done})

    def is_local(self, name: str) -> bool:
        """Whether the project itself makes the package."""
        source = self._entry(name)["source"]
        return not source.keys().isdisjoint({"editable", "directory", "virtual"})

    def wheel(self, name: str) -> Pinned:
        """The wheel that fits best."""
        entry = self._entry(name)
        ranked: list[tuple[int, str, dict[str, str]]] = []
        for wheel in entry.get("wheels", []):
            file = str(wheel["url"]).rpartition("/")[2]
            ranks = [self._tags[tag] for tag in parse_wheel_filename(file)[3] if tag in self._tags]
            if ranks:
                ranked.append((min(ranks), file, wheel))
        if not ranked:
            target = self._target
            raise WheelError(
                f"{name} {entry['version']} has no wheel for {target.architecture}"
                f" and Python {target.minor}.",
                hint="Choose a version that has, or leave that architecture out.",
            )
        _, file, wheel = min(ranked, key=lambda choice: choice[:2])
        return Pinned(file, wheel["hash"].removeprefix("sha256:"), (wheel["url"],))

    def _entry(self, name: str) -> dict[str, Any]:
        if name not in self._by_name:
            raise WheelError(f"{self._file} has no package {name}.", hint="Run uv lock.")
        return self._by_name[name]

    def _holds(self, marker: str) -> bool:
        return not marker or Marker(marker).evaluate(self._environment)


def locked_layer(
    wheels: Sequence[Pinned], target: Target, time: int, downloads: Downloads
) -> Layer:
    """A layer of wheels of others."""
    fetched = downloads.fetch(wheels)
    layer = Layer("wheels", time)
    for wheel in wheels:
        add_wheel(layer, fetched[wheel.sha256].read_bytes(), target)
    return layer


def own_layer(wheels: Sequence[Path], target: Target, time: int) -> Layer:
    """A layer of the project's own wheels."""
    layer = Layer("application", time)
    for wheel in sorted(wheels):
        add_wheel(layer, wheel.read_bytes(), target)
    return layer


def add_wheel(layer: Layer, data: bytes, target: Target) -> None:
    """Unpack a wheel. Its scripts are left out: programs are started as modules.

    Raises:
        WheelError: A file is not what the wheel's own record says.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        folder = info.removesuffix("METADATA")
        package = _package(archive.read(info), hashlib.sha256(data).hexdigest())
        record = _read_record(archive.read(f"{folder}RECORD").decode())
        for name in names:
            content = archive.read(name)
            path = _installed(name)
            if path is None or path.endswith(".pyc"):
                continue
            if record.get(name) not in {None, _record_hash(content)}:
                raise WheelError(f"{package.name}: {name} is not what its RECORD says.")
            layer.add(f"{target.packages_folder}/{path}", File(package, 0o644, content=content))


def _installed(name: str) -> str | None:
    """Where a file of a wheel goes below the packages' folder; None leaves it out."""
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
    # Some have the whole licence there.
    return (text,) if 0 < len(text) < 60 else ()


def _read_record(text: str) -> Mapping[str, str]:
    return {row[0]: row[1] for row in csv.reader(io.StringIO(text)) if len(row) > 1 and row[1]}


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
