"""The cache of binaries, by the hash of their content, and the locks of processes that fill it.

```
blobs/<sha256>/<component>                     the binary, with its name for `ps`
index/<component>@<version>@<os>-<arch>.json   its blob and its source
images/<reference>.json                        the digest of an image at its first pull
sources/<module>@<version>/                    a Go module's files, on machines without Go
partial/<key>/<sha256>                         a download that may be resumed
work/<key>~<random>/                           one build or download under way
locks/<key>.lock                               the lock of the process that builds <key>
locks/<key>.wanted                             exists while another process waits for that lock
```

Files are written in `work` and renamed into place, so a killed process leaves no partial program.
The kernel releases the locks of a process that dies.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from capelin.api import Model
from pydantic import ConfigDict, ValidationError

from capelin_embedded.binaries.catalog import ComponentVersion, Platform
from capelin_embedded.binaries.errors import BinariesError, SourceFailedError
from capelin_embedded.file_locks import hold_lock, try_lock

_PRUNE_KEEPS = ("blobs", "images", "index", "locks")


class _RecordedDigest(Model):
    image: str
    digest: str


class Entry(Model):
    model_config = ConfigDict(frozen=True)

    component: str
    version: str
    platform: str
    digest: str
    """The SHA-256 of the binary's content, in hexadecimal."""
    size: int
    modified: int
    """The file's modification time in nanoseconds when its content was last verified."""
    source: str
    """Its source: an image with its digest, or a Go package with its version."""

    def __str__(self) -> str:
        """For example `kube-apiserver v1.36.3`."""
        return f"{self.component} {self.version}"


@dataclass(frozen=True, slots=True)
class BuildDir:
    """A private folder to build in, and the lock that excludes other processes from the build."""

    folder: Path
    partial: Path
    """A folder for downloads that can resume after this build is interrupted."""
    lock: int
    wanted: Path
    """A file that exists while another process waits for the lock."""


class Cache:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def path(self, entry: Entry) -> Path:
        return self.root / "blobs" / entry.digest / entry.component

    def find(self, request: ComponentVersion, platform: Platform) -> Entry | None:
        """The binary, if the cache has it undamaged.

        Size and modification time decide. If those differ, the content decides.
        """
        entry = self._read(self._index(request.component.name, request.version, str(platform)))
        if entry is None:
            return None
        try:
            stat = self.path(entry).stat()
        except FileNotFoundError:
            return None
        if (stat.st_size, stat.st_mtime_ns) == (entry.size, entry.modified):
            return entry
        if stat.st_size != entry.size or _digest(self.path(entry)) != entry.digest:
            return None
        entry = entry.model_copy(update={"modified": stat.st_mtime_ns})
        # A read-only cache is hashed every time.
        with suppress(OSError):
            self._write(entry)
        return entry

    def add(self, file: Path, request: ComponentVersion, platform: Platform, source: str) -> Entry:
        """Move a binary from a build folder into the cache."""
        file.chmod(0o755)
        stat = file.stat()
        entry = Entry(
            component=request.component.name,
            version=request.version,
            platform=str(platform),
            digest=_digest(file),
            size=stat.st_size,
            modified=stat.st_mtime_ns,
            source=source,
        )
        self.path(entry).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.replace(self.path(entry))
        return self._write(entry)

    @asynccontextmanager
    async def building(
        self, key: str, on_wait: Callable[[], None] | None = None
    ) -> AsyncGenerator[BuildDir]:
        """A folder to build in, for one builder of `key` at a time across all processes.

        First removes the files of killed builders.
        """
        self._check_writable()
        wanted = self._lock_file(key).with_suffix(".wanted")

        def wait() -> None:
            wanted.touch()
            if on_wait is not None:
                on_wait()

        async with (
            hold_lock(self._lock_file(), shared=True),
            hold_lock(self._lock_file(key), on_wait=wait) as lock,
        ):
            # Of this process, or of one that was killed while it waited.
            wanted.unlink(missing_ok=True)
            for stale in (self.root / "work").glob(f"{key}~*"):
                shutil.rmtree(stale, ignore_errors=True)
            partial = self.root / "partial" / key
            partial.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with self._scratch(key) as folder:
                    yield BuildDir(folder, partial, lock, wanted)
            finally:
                with suppress(OSError):
                    partial.rmdir()

    def recorded_digest(self, image: str) -> str | None:
        """The digest of an image at its first pull."""
        try:
            return _RecordedDigest.read_json(self.digest_file(image).read_bytes()).digest
        except FileNotFoundError:
            return None
        except ValidationError as error:
            # Pulling without the record would trust any content of the registry.
            raise SourceFailedError(f"{self.digest_file(image)} is damaged. Remove it") from error

    def record_digest(self, image: str, digest: str) -> None:
        record = _RecordedDigest(image=image, digest=digest)
        self._replace(self.digest_file(image), record.model_dump_json(indent=2))

    def digest_file(self, image: str) -> Path:
        return self.root / "images" / f"{quote(image, safe=':')}.json"

    def source(self, module: str) -> Path:
        """The folder of a Go module's files, for a `module` such as `sigs.k8s.io/kwok@v0.7.0`."""
        return self.root / "sources" / module

    def add_source(self, folder: Path, module: str) -> Path:
        """Move a Go module's files from a build folder into the cache."""
        into = self.source(module)
        if into.exists():
            shutil.rmtree(into)
        into.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.rename(into)

    def entries(self) -> list[Entry]:
        """All binaries in the cache, sorted by component and version."""
        files = (self.root / "index").glob("*.json")
        entries = [entry for entry in map(self._read, files) if entry is not None]
        return sorted(entries, key=lambda entry: (entry.component, entry.version, entry.platform))

    def verify(self) -> list[Entry]:
        """Hash every binary. Removes and returns the damaged ones."""
        with self._exclusive():
            damaged = [entry for entry in self.entries() if not self._intact(entry)]
            for entry in damaged:
                self._index_file(entry).unlink()
                self.path(entry).unlink(missing_ok=True)
            return damaged

    def prune(self, keep: Iterable[Entry] = ()) -> int:
        """Remove all binaries except `keep`, and all other files that can be downloaded again.

        Recorded digests of images stay: without them, the next pull would trust any content.
        Returns the number of freed bytes.
        """
        with self._exclusive():
            before = _size(self.root)
            kept = {self._index_file(entry) for entry in keep}
            for entry in self.entries():
                if self._index_file(entry) not in kept:
                    self._index_file(entry).unlink()
            used = {entry.digest for entry in self.entries()}
            for blob in _children(self.root / "blobs"):
                if blob.name not in used:
                    shutil.rmtree(blob)
            for child in _children(self.root):
                if child.name not in _PRUNE_KEEPS:
                    shutil.rmtree(child)
            return before - _size(self.root)

    def _check_writable(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(self.root, os.W_OK):
            raise BinariesError(
                f"The cache {self.root} is not writable. Make it writable, or set"
                " XDG_CACHE_HOME to a writable folder"
            )

    @contextmanager
    def _exclusive(self) -> Generator[None]:
        lock = try_lock(self._lock_file())
        if lock is None:
            raise BinariesError(
                f"another process is filling {self.root}, so nothing can be removed from"
                " it now. Try again when that process has ended"
            )
        try:
            yield
        finally:
            os.close(lock)

    def _intact(self, entry: Entry) -> bool:
        try:
            return _digest(self.path(entry)) == entry.digest
        except FileNotFoundError:
            return False

    def _lock_file(self, key: str = "cache") -> Path:
        return self.root / "locks" / f"{key}.lock"

    def _index_file(self, entry: Entry) -> Path:
        return self._index(entry.component, entry.version, entry.platform)

    def _index(self, component: str, version: str, platform: str) -> Path:
        name = f"{component}@{version}@{platform.replace('/', '-')}.json"
        return self.root / "index" / name

    @contextmanager
    def _scratch(self, key: str) -> Generator[Path]:
        work = self.root / "work"
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f"{key}~", dir=work, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder)

    def _read(self, file: Path) -> Entry | None:
        try:
            return Entry.read_json(file.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def _write(self, entry: Entry) -> Entry:
        self._replace(self._index_file(entry), entry.model_dump_json(indent=2))
        return entry

    def _replace(self, file: Path, text: str) -> None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._scratch("write") as folder:
            new = folder / file.name
            new.write_text(text + "\n")
            new.replace(file)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _children(folder: Path) -> Iterable[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
