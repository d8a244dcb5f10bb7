"""Where backups are stored: the protocol, and folders of the provider's machine."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import suppress
from io import BufferedWriter, FileIO
from pathlib import Path
from queue import SimpleQueue
from tempfile import mkstemp
from threading import Thread
from typing import Any, Final, Protocol, TypeVar

from capelin_embedded.processes import private_folder

from capelin_control_plane.api.reasons import Reason

LARGEST_READ: Final = 8 << 10
"""The largest file that `Store.read` returns: manifests are small."""
MOST_FILES: Final = 20_000
"""More files in a store are an error: they belong to something else."""
_PARTIAL: Final = ".partial"
_LONGEST_SEGMENT_SECONDS: Final = 3600.0
_PIECE: Final = 1 << 20

T = TypeVar("T")


class StoreError(Exception):
    """A store cannot be read or written."""

    def __init__(self, message: str, reason: Reason = Reason.BACKUP_FAILED) -> None:
        super().__init__(message)
        self.reason = reason


class Upload(Protocol):
    """A new file. It exists completely after `finish`, and not at all before."""

    async def write(self, data: bytes) -> None: ...

    async def finish(self) -> None: ...

    async def abort(self) -> None:
        """Give up. Does not wait for a store that hangs."""
        ...


class Store(Protocol):
    """The files of a control plane's backups. Each method may raise StoreError."""

    async def names(self) -> list[str]: ...

    async def read(self, name: str) -> bytes | None:
        """A small file. None if it does not exist."""
        ...

    def open(self, name: str) -> AsyncGenerator[bytes]:
        """The content of a file of any size, in pieces."""
        ...

    async def create(self, name: str) -> Upload: ...

    async def delete(self, name: str) -> None: ...

    async def abort_uploads(self) -> None:
        """Delete the remains of uploads that another provider did not finish."""
        ...


class Workers:
    """Threads for operations that may hang.

    Those of the event loop must not be used for that, and those of `concurrent.futures` would keep
    the process from ending.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._started = False

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function, and wait for its result."""
        return await asyncio.wrap_future(self.submit(function, *arguments))

    def submit(self, function: Callable[..., T], *arguments: Any) -> "Future[T]":
        """Run a function."""
        if not self._started:
            self._started = True
            for _ in range(self._count):
                Thread(target=self._work, name="backup", daemon=True).start()
        future: Future[T] = Future()
        self._queue.put((future, lambda: function(*arguments)))
        return future

    def close(self) -> None:
        """End the threads that do not hang."""
        for _ in range(self._count if self._started else 0):
            self._queue.put(None)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            future, function = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # noqa: BLE001 - the caller gets it
                    future.set_exception(error)


class FolderStore:
    """A folder below the administrator's folder for backups."""

    def __init__(self, root: Path, folder: Path, workers: Workers) -> None:
        self._root, self._folder, self._path = root, folder, root / folder
        self.workers = workers

    async def names(self) -> list[str]:
        return await self.run(names_in, self._path)

    async def read(self, name: str) -> bytes | None:
        return await self.run(read_small, self._path / name)

    async def open(self, name: str) -> AsyncGenerator[bytes]:
        file = await self.run(_open_unbuffered, self._path / name)
        try:
            while piece := await self.run(file.read, _PIECE):
                yield piece
        finally:
            # Not awaited: it can hang.
            self.workers.submit(file.close)

    async def create(self, name: str) -> "_FolderUpload":
        file, partial = await self.run(self._open, name)
        return _FolderUpload(self, file, partial, self._path / name)

    async def delete(self, name: str) -> None:
        await self.run(_unlink, self._path / name)

    async def abort_uploads(self) -> None:
        await self.run(_delete_partial, self._path)

    def _open(self, name: str) -> tuple[BufferedWriter, Path]:
        if not self._root.is_dir():
            # A volume that is not mounted must not fill the disk below it.
            raise StoreError("the folder of the option --backup-folder does not exist")
        path = self._root
        for part in self._folder.parts:
            path = private_folder(path / part)
        # Another provider may write a file of this name at the same time.
        descriptor, partial = mkstemp(_PARTIAL, f"{name}.", path)
        return os.fdopen(descriptor, "wb"), Path(partial)

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function in a worker."""
        try:
            return await self.workers.run(function, *arguments)
        except OSError as error:
            raise StoreError(f"{self._folder}: {error.strerror or error}") from error


class _FolderUpload:
    def __init__(self, store: FolderStore, file: BufferedWriter, partial: Path, path: Path) -> None:
        self._store, self._file, self._partial, self._path = store, file, partial, path

    async def write(self, data: bytes) -> None:
        await self._store.run(self._file.write, data)

    async def finish(self) -> None:
        await self._store.run(self._publish)

    async def abort(self) -> None:
        # Not awaited: it can hang. The remains are deleted before the next backup.
        self._store.workers.submit(self._file.close)

    def _publish(self) -> None:
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        self._partial.replace(self._path)
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def names_in(folder: Path) -> list[str]:
    """The names of the files in a folder that may not exist.

    Raises:
        StoreError: there are too many.
    """
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(names) == MOST_FILES:
                    raise StoreError(f"{folder.name} has more than {MOST_FILES} files")
                names.append(entry.name)
    except FileNotFoundError:
        return []
    return names


def read_small(path: Path) -> bytes | None:
    """A file of at most `LARGEST_READ`. None if it does not exist."""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_READ)
    except FileNotFoundError:
        return None


def _open_unbuffered(path: Path) -> FileIO:
    return path.open("rb", buffering=0)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _delete_partial(folder: Path) -> None:
    for path in folder.glob(f"*{_PARTIAL}"):
        # The archive may write a segment now.
        is_backup = path.name[:1].isdigit()
        with suppress(FileNotFoundError):
            if is_backup or time.time() - path.stat().st_mtime > _LONGEST_SEGMENT_SECONDS:
                path.unlink()
