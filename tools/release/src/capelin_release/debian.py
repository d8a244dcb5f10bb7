"""The layer of Debian packages: Python and its dependencies, from locked `.deb` files."""

import io
import lzma
import os
import re
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from capelin.errors import UserError

from capelin_release.downloads import Downloads, Pinned
from capelin_release.files import File, Layer, Package

MIRROR_VARIABLE = "CAPELIN_DEBIAN_MIRROR"
MIRROR = "https://deb.debian.org"
SNAPSHOTS = "https://snapshot.debian.org/archive"

_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
_CERTIFICATES = "usr/share/ca-certificates/"
_RECORDS = "var/lib/dpkg/status.d"
# Debian's installer merges / and /usr. No package does.
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Nothing reads it in an image. Licences (usr/share/doc/*/copyright) stay.
_LEFT_OUT = re.compile(
    r"usr/share/(man|info|lintian|locale|bug|doc-base|gcc|gdb|menu|applications|pixmaps)(/|$)"
    r"|usr/share/doc/[^/]+/(?!copyright$)."
    r"|usr/share/(dict|base-files)/|usr/sbin/update-ca-certificates$|etc/ca-certificates/update\.d"
    r"|etc/update-motd\.d|etc/(motd|issue|issue\.net|profile\.d|skel|opt)(/|$)|usr/share/sensible-"
    r"|usr/(games|local/games)|(home|media|mnt|opt|srv|boot|root)$|var/(backups|cache|local|lock|mail"
    r"|spool|log|run)(/|$)|run(/|$)|(dev|proc|sys)$|etc/dpkg(/|$)|etc/\.pwd\.lock$"
)


class PackageError(UserError):
    """A Debian package cannot be used."""


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One `.deb` file."""

    name: str
    version: str
    architecture: str
    archive: str
    """`debian` or `debian-security`."""
    filename: str
    sha256: str

    def pinned(self, snapshot: str) -> Pinned:
        """Where to get it. Mirrors drop old versions, which snapshots keep."""
        path = quote(self.filename, safe="/+~:")
        mirror = os.environ.get(MIRROR_VARIABLE, MIRROR).rstrip("/")
        return Pinned(
            f"{self.name} {self.version}",
            self.sha256,
            (f"{mirror}/{self.archive}/{path}", f"{SNAPSHOTS}/{self.archive}/{snapshot}/{path}"),
        )


@dataclass(frozen=True, slots=True)
class Lock:
    """The packages of an image for every architecture, from the lock file."""

    snapshot: str
    """When the lock file was written, in the format of snapshot.debian.org."""
    packages: Mapping[str, Sequence[LockedPackage]]

    @classmethod
    def read(cls) -> "Lock":
        """Capelin's own lock file."""
        content = tomllib.loads((files("capelin_release") / "debian.lock").read_text())
        packages = {
            architecture: [LockedPackage(**entry) for entry in entries]
            for architecture, entries in content["packages"].items()
        }
        return cls(content["snapshot"], packages)

    @property
    def time(self) -> int:
        """Seconds since 1970."""
        moment = datetime.strptime(self.snapshot, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return int(moment.timestamp())

    @property
    def python(self) -> str:
        """The version of Python in the images, such as `3.11.2`."""
        for package in next(iter(self.packages.values())):
            if match := re.fullmatch(r"python(3\.\d+)", package.name):
                return re.split(r"[-+~]", package.version.rpartition(":")[2])[0] or match[1]
        raise PackageError("The lock file of Debian packages has no Python.")


def debian_layer(lock: Lock, architecture: str, downloads: Downloads) -> Layer:
    """The root file system: Debian packages with their records, users, and trusted certificates.

    It runs no script of a package. Instead, it writes the files from scripts that Python needs.
    """
    if architecture not in lock.packages:
        known = ", ".join(sorted(lock.packages))
        raise PackageError(f"No packages are locked for {architecture}.", hint=f"Known: {known}.")
    locked = lock.packages[architecture]
    fetched = downloads.fetch(package.pinned(lock.snapshot) for package in locked)
    layer = Layer("debian", lock.time)
    for package in locked:
        _unpack(package, fetched[package.sha256], layer)
    _finish(layer, lock)
    return layer


def _unpack(locked: LockedPackage, file: Path, layer: Layer) -> None:
    members = dict(read_ar(file.read_bytes()))
    control = _archive(locked.name, members, "control")
    data = _archive(locked.name, members, "data")
    package = Package(
        "debian",
        locked.name,
        locked.version,
        f"pkg:deb/debian/{quote(locked.name)}@{quote(locked.version)}"
        f"?arch={locked.architecture}&distro=debian-12",
        _licenses(_member(data, f"usr/share/doc/{locked.name}/copyright")),
        locked.sha256,
    )
    for path, entry in _files(data, package):
        layer.add(path, entry)
    record = _record(_member(control, "control"))
    layer.add(f"{_RECORDS}/{locked.name}", File(package, 0o644, content=record))
    sums = _member(control, "md5sums").splitlines(keepends=True)
    kept = [line for line in sums if _merged(line[34:].strip().decode()) in layer.files]
    layer.add(f"{_RECORDS}/{locked.name}.md5sums", File(package, 0o644, content=b"".join(kept)))


def _files(data: tarfile.TarFile, package: Package) -> Iterator[tuple[str, File]]:
    for info in data:
        path = _merged(info.name)
        if path in {"", ".", *_MERGED} or _LEFT_OUT.match(path):
            continue
        if info.isdir():
            yield path, File(package, info.mode, "folder")
        elif info.issym():
            yield path, File(package, 0o777, "link", target=info.linkname)
        elif info.isfile() or info.islnk():
            yield path, File(package, info.mode, content=_content(data, info))
        else:
            raise PackageError(f"{package.name} has a device or a socket: /{path}.")


def _finish(layer: Layer, lock: Lock) -> None:
    """The files that the packages' scripts, or the installer, would have made."""
    by_name = {package.name: package for package in layer.packages()}
    base, certificates = by_name["base-files"], by_name["ca-certificates"]
    for name in _MERGED:
        if any(path.startswith(f"usr/{name}/") for path in layer.files):
            layer.add(name, File(base, 0o777, "link", target=f"usr/{name}"))
    bundle = b"".join(
        layer.files[path].read().rstrip() + b"\n"
        for path in sorted(layer.files)
        if path.startswith(_CERTIFICATES) and path.endswith(".crt")
    )
    layer.add(_BUNDLE, File(certificates, 0o644, content=bundle))
    # Where OpenSSL looks. The package `openssl`, which is left out, would lead there too.
    layer.add("usr/lib/ssl/cert.pem", File(certificates, 0o777, "link", target=f"/{_BUNDLE}"))
    python = by_name["python" + lock.python.rpartition(".")[0]]
    for name in ("python3", "python"):
        layer.add(f"usr/bin/{name}", File(python, 0o777, "link", target=python.name))
    layer.files["tmp"] = File(base, 0o1777, "folder")


def _merged(path: str) -> str:
    """A path where the merge of / and /usr puts it."""
    path = path.removeprefix("./").strip("/")
    first, _, rest = path.partition("/")
    return f"usr/{path}" if rest and first in _MERGED else path


def _record(fields: bytes) -> bytes:
    """A package's control file in the format of dpkg's status, which scanners read."""
    name, _, rest = fields.partition(b"\n")
    return name + b"\nStatus: install ok installed\n" + rest.rstrip() + b"\n"


def _licenses(copyright_file: bytes) -> tuple[str, ...]:
    """The short names in a machine-readable copyright file. Others name none."""
    text = copyright_file.decode(errors="replace")
    if not text.startswith("Format:"):
        return ()
    names = re.findall(r"^License: *(\S.*)$", text, re.MULTILINE)
    return tuple(sorted({name.strip() for name in names}))


def _archive(name: str, members: Mapping[str, bytes], stem: str) -> tarfile.TarFile:
    member = f"{stem}.tar.xz"
    if member not in members:
        raise PackageError(f"{name} has no {member}, but {', '.join(members)}.")
    return tarfile.open(fileobj=io.BytesIO(lzma.decompress(members[member])))


def _member(archive: tarfile.TarFile, path: str) -> bytes:
    """The content of a file. Empty if the archive has no such file, or a link in its place."""
    try:
        info = archive.getmember(f"./{path}")
    except KeyError:
        return b""
    return _content(archive, info) if info.isfile() else b""


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(info)
    return stream.read() if stream else b""


def read_ar(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The members of an `ar` archive, which a `.deb` file is."""
    if not data.startswith(b"!<arch>\n"):
        raise PackageError("This is not a Debian package: it does not begin as an ar archive.")
    position = 8
    while position + 60 <= len(data):
        header = data[position : position + 60]
        size = int(header[48:58])
        name = header[:16].decode().rstrip().rstrip("/")
        position += 60
        if position + size > len(data):
            raise PackageError(f"A Debian package is cut off in the middle of {name}.")
        yield name, data[position : position + size]
        position += size + size % 2
