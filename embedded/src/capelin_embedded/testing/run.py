"""One API server for all workers of a test run, and cleanup after killed runs."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Collection, Coroutine, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from capelin_embedded.apiserver import ApiServer, Settings
from capelin_embedded.binaries import (
    TESTED_KUBERNETES,
    Binaries,
    BinariesError,
    Component,
    default_progress,
)
from capelin_embedded.file_locks import lock_held, open_lock, try_lock, wait_for_lock
from capelin_embedded.management import required_programs
from capelin_embedded.processes import kill_all, private_folder
from capelin_embedded.testing import management

T = TypeVar("T")

_THROWAWAY = Settings(durable=False)
_API_SERVERS = frozenset({"api_server", "own_api_server"})


def run_elsewhere(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, with or without an event loop in this thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def default_base() -> Path:
    return Path(tempfile.gettempdir()) / f"capelin-testing-{os.geteuid()}"


@contextmanager
def held_run(name: str, base: Path | None = None) -> Generator[Path]:
    """The folder of a test run, while one of its workers uses it.

    A worker that uses a run holds a lock on it, which the kernel releases when the worker ends. So
    a run without locks is over, and the next run removes it.
    """
    base = private_folder(base or default_base())
    run = base / name
    with lock_held(base / "lock"):
        for other in base.iterdir():
            if other.is_dir():
                _remove_unless_used(other)
        users = open_lock(private_folder(run) / "users")
        wait_for_lock(users, shared=True)
    try:
        yield run
    finally:
        with lock_held(base / "lock"):
            os.close(users)
            _remove_unless_used(run)


def shared_api_server(run: Path) -> ApiServer:
    """The API server of a run, started by the first worker that needs it."""
    with lock_held(run / "start"):
        return run_elsewhere(_started(run / "shared"))


def shared_management_cluster(run: Path) -> management.ManagementCluster:
    """The management cluster of a run, started by the first worker that needs it."""
    return run_elsewhere(management.started(run / "management"))


@contextmanager
def own_api_server(run: Path) -> Generator[ApiServer]:
    """An API server for one test, which may do anything to it."""
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
    users = try_lock(run / "users")
    if users is None:
        return
    try:
        for server in run.iterdir():
            if management.is_one(server):
                run_elsewhere(management.removed(server))
            elif server.is_dir():
                # Its content is not worth an orderly shutdown.
                run_elsewhere(kill_all(server / "processes"))
        shutil.rmtree(run)
    finally:
        os.close(users)


def needed(fixtures: Collection[str], marked: Iterable[str | Component]) -> list[str | Component]:
    """The binaries for these fixtures, and those in the markers of tests."""
    names: set[str | Component] = {*marked}
    if not _API_SERVERS.isdisjoint(fixtures):
        names |= {*Settings().programs}
    if "management_cluster" in fixtures:
        names |= {*required_programs(TESTED_KUBERNETES[-1], ())}
    return sorted(names, key=str)


def get(names: Iterable[str | Component]) -> BinariesError | None:
    """Download or build binaries. Returns a failure: only the tests that need them fail."""
    try:
        run_elsewhere(Binaries(progress=default_progress()).fetch(names))
    except BinariesError as error:
        return error
    return None
