"""One API server for all workers of a test run; what a killed run left behind is removed."""

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from capelin.embedded.apiserver import ApiServer, Settings
from capelin.embedded.processes import kill_all, private_folder
from capelin.testing import management

T = TypeVar("T")

_THROWAWAY = Settings(durable=False)


def run_elsewhere(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, whatever event loop this thread has or runs."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def default_base() -> Path:
    """The folder of this user's test runs."""
    return Path(tempfile.gettempdir()) / f"capelin-testing-{os.geteuid()}"


@contextmanager
def held_run(name: str, base: Path | None = None) -> Generator[Path]:
    """The folder of a test run, for as long as one of its workers uses it.

    A worker that uses a run holds a lock on it, which the kernel lets go however the worker ends.
    So a run that nobody holds is over, and whoever comes next removes it.
    """
    base = private_folder(base or default_base())
    run = base / name
    with _locked(base / "lock"):
        for other in base.iterdir():
            if other.is_dir():
                _remove_unless_used(other)
        users = _hold(private_folder(run) / "users")
    try:
        yield run
    finally:
        with _locked(base / "lock"):
            os.close(users)
            _remove_unless_used(run)


def shared_api_server(run: Path) -> ApiServer:
    """The API server of a run, started by the first worker that asks."""
    with _locked(run / "start"):
        return run_elsewhere(_started(run / "shared"))


def shared_management_cluster(run: Path) -> management.ManagementCluster:
    """The management cluster of a run, started by the first worker that asks."""
    return run_elsewhere(management.started(run / "management"))


@contextmanager
def own_api_server(run: Path) -> Generator[ApiServer]:
    """An API server for one test, which may do to it what it likes."""
    folder = run / uuid4().hex
    try:
        yield run_elsewhere(_started(folder))
    finally:
        run_elsewhere(kill_all(folder / "processes"))
        shutil.rmtree(folder)


async def _started(folder: Path) -> ApiServer:
    server = await ApiServer.prepare(folder, _THROWAWAY)
    await server.start()
    return server


def _remove_unless_used(run: Path) -> None:
    users = os.open(run / "users", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        for server in run.iterdir():
            if management.is_one(server):
                run_elsewhere(management.removed(server))
            elif server.is_dir():
                # Nothing in it is worth an orderly end.
                run_elsewhere(kill_all(server / "processes"))
        shutil.rmtree(run)
    finally:
        os.close(users)


def _hold(file: Path) -> int:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


@contextmanager
def _locked(file: Path) -> Generator[None]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
