"""The files of an image layer, each with the package that it belongs to."""

import io
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Literal

from capelin.errors import UserError

Origin = Literal["debian", "wheel", "go", "image"]
"""The origin of a package. The builder itself writes files of the origin `image`."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package whose files are in an image."""

    origin: Origin
    name: str
    version: str
    url: str
    """The package URL (purl) by which scanners know it."""
    licenses: tuple[str, ...] = ()
    sha256: str = ""
    """The digest of the archive that it was unpacked from."""


BUILDER: Final = Package("image", "capelin-image", "1", "pkg:generic/capelin-image@1")
"""The package of folders and archive members that no other package names."""


@dataclass(frozen=True, slots=True)
class File:
    """A regular file, a folder or a symbolic link."""

    package: Package
    mode: int
    kind: Literal["file", "folder", "link"] = "file"
    content: bytes | Path = b""
    target: str = ""
    owner: int = 0

    def read(self) -> bytes:
        """The content of a regular file."""
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()


class PathConflictError(UserError):
    """Two packages have the same file."""


@dataclass(slots=True)
class Layer:
    """Files by their path without a leading slash, and the time that all of them get."""

    name: str
    time: int
    files: dict[str, File] = field(default_factory=dict[str, File])

    def add(self, path: str, file: File) -> None:
        """Add a file. A folder may exist already."""
        present = self.files.setdefault(path, file)
        if present is not file and not (present.kind == file.kind == "folder"):
            raise PathConflictError(
                f"/{path} is in two packages: {present.package.name} and {file.package.name}."
            )

    def packages(self) -> list[Package]:
        """The packages of all files, by name."""
        found = {file.package for file in self.files.values()}
        return sorted(found, key=lambda package: (package.origin, package.name))

    def entries(self) -> Iterator[tuple[str, File]]:
        """Every file in the order of an archive, with the folders above that no package names."""
        folders = {str(parent) for path in self.files for parent in Path(path).parents} - {"."}
        for path in sorted(folders | self.files.keys()):
            yield path, self.files.get(path) or File(BUILDER, 0o755, "folder")


def write_tar(entries: Iterable[tuple[str, File]], time: int, stream: BinaryIO) -> None:
    """Write a tar archive that depends on nothing but its arguments."""
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path, file in entries:
            info = tarfile.TarInfo(path)
            info.mtime, info.mode = time, stat.S_IMODE(file.mode)
            info.uid = info.gid = file.owner
            match file.kind:
                case "folder":
                    info.type = tarfile.DIRTYPE
                    archive.addfile(info)
                case "link":
                    info.type, info.linkname, info.mode = tarfile.SYMTYPE, file.target, 0o777
                    archive.addfile(info)
                case "file":
                    content = file.read()
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
