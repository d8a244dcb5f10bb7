"""Concurrent and interrupted processes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capelin.testing.waiting import until
from capelin_embedded.binaries import Binaries, Cache, WantedByAnotherError

if TYPE_CHECKING:
    from .conftest import FakeGo

SCRIPT = """
import asyncio, sys
from pathlib import Path
from capelin_embedded.binaries import Binaries, PlainProgress

binaries = Binaries(
    cache=Path(sys.argv[1]),
    progress=PlainProgress(),
    mirrors={"registry.k8s.io": "http://127.0.0.1:1"},
    environment={"PATH": sys.argv[2]},
)
sys.stdout.write(str(asyncio.run(binaries.path("etcd"))))
"""
WAITS = "etcd v3.6.8: cache: another process is providing it"

StartFetch = Callable[[], Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
async def start_fetch(cache: Cache, go: "FakeGo") -> AsyncGenerator[StartFetch]:
    """Starts a process that fetches etcd."""
    started: list[asyncio.subprocess.Process] = []

    async def start() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            SCRIPT,
            str(cache.root),
            go.path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # A background process of a shell without job control ignores SIGINT.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def wait_for_line(process: asyncio.subprocess.Process, line: str) -> None:
    assert process.stderr is not None
    while (output := await process.stderr.readline()).decode().rstrip() != line:
        assert output, f"the process ended without the line {line!r}"


async def path_from(process: asyncio.subprocess.Process) -> Path:
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return Path(output.decode())


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def remains_in(cache: Cache) -> list[str]:
    return [file.name for part in ("work", "partial") for file in (cache.root / part).iterdir()]


async def test_concurrent_processes_build_once(
    start_fetch: StartFetch, cache: Cache, go: "FakeGo"
) -> None:
    go.hold()
    first = await start_fetch()
    await go.pid()
    second = await start_fetch()
    await wait_for_line(second, WAITS)
    go.release()
    assert await path_from(first) == await path_from(second)
    assert len(go.builds()) == 1
    assert [entry.component for entry in cache.entries()] == ["etcd"]
    assert remains_in(cache) == []


async def test_a_build_in_the_background_leaves_the_binary_to_others(
    start_fetch: StartFetch, cache: Cache, go: "FakeGo"
) -> None:
    go.hold()
    in_background = Binaries(
        cache=cache.root,
        progress=lambda _: None,
        mirrors={"registry.k8s.io": "http://127.0.0.1:1"},
        environment={"PATH": go.path},
        background=True,
    )
    background = asyncio.create_task(in_background.fetch(["etcd"]))
    pid = await go.pid()
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert os.getsid(pid) == pid
    assert go.environment()["GOFLAGS"] == "-mod=readonly -p=1"
    foreground = await start_fetch()
    with pytest.raises(WantedByAnotherError):
        await background
    assert not alive(pid)
    await until(lambda: len(go.builds()) == 2)
    go.release()
    assert (await path_from(foreground)).exists()
    assert remains_in(cache) == []
    # The next build in the background finds it.
    assert (await in_background.fetch(["etcd"]))["etcd"].path.exists()
    assert len(go.builds()) == 2


async def test_a_run_after_a_killed_build_succeeds(
    start_fetch: StartFetch, cache: Cache, go: "FakeGo"
) -> None:
    go.hold()
    killed = await start_fetch()
    pid = await go.pid()
    killed.kill()
    os.killpg(pid, signal.SIGKILL)
    await killed.wait()
    assert len(remains_in(cache)) == 2
    assert cache.entries() == []
    go.release()
    assert (await path_from(await start_fetch())).exists()
    assert remains_in(cache) == []
    assert cache.verify() == []


async def test_a_run_waits_for_a_surviving_go(
    start_fetch: StartFetch, cache: Cache, go: "FakeGo"
) -> None:
    go.hold()
    killed = await start_fetch()
    pid = await go.pid()
    killed.kill()
    await killed.wait()
    following = await start_fetch()
    await wait_for_line(following, WAITS)
    assert alive(pid)
    assert len(go.builds()) == 1
    go.release()
    assert (await path_from(following)).exists()
    assert not alive(pid)
    assert remains_in(cache) == []


async def test_ctrl_c_also_ends_go(start_fetch: StartFetch, cache: Cache, go: "FakeGo") -> None:
    go.hold()
    interrupted = await start_fetch()
    pid = await go.pid()
    interrupted.send_signal(signal.SIGINT)
    _, errors = await interrupted.communicate()
    assert "etcd v3.6.8: go build: failed: stopped" in errors.decode().splitlines()
    assert interrupted.returncode not in {0, None}
    assert not alive(pid)
    assert remains_in(cache) == []
    assert cache.entries() == []
    go.release()
    assert (await path_from(await start_fetch())).exists()
