"""Locks between processes that fill one cache: the kernel drops them when their holder dies."""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

_POLL = 0.1


@asynccontextmanager
async def holding(
    file: Path, *, shared: bool = False, waiting: Callable[[], None] | None = None
) -> AsyncGenerator[int]:
    """Hold the lock on a file, waiting for it if need be; gives its file descriptor.

    A child process that inherits the descriptor keeps the lock for as long as it lives.
    """
    descriptor = _open(file)
    try:
        # Polled, because a thread that blocks in flock could not be cancelled by Ctrl-C.
        while not _take(descriptor, shared=shared):
            if waiting is not None:
                waiting()
                waiting = None
            await asyncio.sleep(_POLL)
        yield descriptor
    finally:
        os.close(descriptor)


def try_exclusive(file: Path) -> int | None:
    """The descriptor of the lock if nobody holds it in any way, else nothing."""
    descriptor = _open(file)
    if _take(descriptor, shared=False):
        return descriptor
    os.close(descriptor)
    return None


def _open(file: Path) -> int:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _take(descriptor: int, *, shared: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
