"""Locks on files, which the kernel releases with the last process that holds them.

`filelock` cannot replace them: a build that outlives its starter inherits the lock of its cache
entry as an open descriptor, and runs share a lock that only the last of them takes exclusively.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

_POLL_SECONDS = 0.1


def open_lock(file: Path) -> int:
    """The descriptor of a lock file, without taking the lock."""
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def take_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take a lock without waiting. Returns whether this process has it now."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(descriptor: int, *, shared: bool = False) -> None:
    """Wait for the lock, and take it."""
    fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_lock(file: Path) -> int | None:
    """The descriptor of the exclusive lock, or None if any process holds it, shared or not."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = open_lock(file)
    if take_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


@asynccontextmanager
async def hold_lock(
    file: Path, *, shared: bool = False, on_wait: Callable[[], None] | None = None
) -> AsyncGenerator[int]:
    """Wait for the lock on a file and hold it. Yields its file descriptor.

    A child process that inherits the descriptor also holds the lock, as long as it lives.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = open_lock(file)
    try:
        # Polled: a thread that blocks in flock could not be cancelled by Ctrl-C.
        while not take_lock(descriptor, shared=shared):
            if on_wait is not None:
                on_wait()
                on_wait = None
            await asyncio.sleep(_POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def lock_held(file: Path) -> Generator[None]:
    """Block until the lock on a file is free, and hold it."""
    descriptor = open_lock(file)
    try:
        wait_for_lock(descriptor)
        yield
    finally:
        os.close(descriptor)
