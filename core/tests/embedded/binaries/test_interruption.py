"""Several processes, and processes that are ended in the middle."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capelin.embedded.binaries import Cache

if TYPE_CHECKING:
    from .conftest import FakeGo

ASK = """
import asyncio, sys
from pathlib import Path
from capelin.embedded.binaries import Binaries, PlainProgress

binaries = Binaries(
    cache=Path(sys.argv[1]),
    progress=PlainProgress(),
    mirrors={"registry.k8s.io": "http://127.0.0.1:1"},
    environment={"PATH": sys.argv[2]},
)
sys.stdout.write(str(asyncio.run(binaries.path("etcd"))))
"""
WAITS = "etcd v3.6.5: cache: another process is providing it"

Ask = Callable[[], Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
async def ask(cache: Cache, go: "FakeGo") -> AsyncGenerator[Ask]:
    """Starts a process that asks for etcd."""
    started: list[asyncio.subprocess.Process] = []

    async def start() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            ASK,
            str(cache.root),
            go.path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Whatever is started in the background of a shell without job control ignores it.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def says(process: asyncio.subprocess.Process, line: str) -> None:
    assert process.stderr is not None
    while (said := await process.stderr.readline()).decode().rstrip() != line:
        assert said, f"{line!r} was never said"


async def answer_of(process: asyncio.subprocess.Process) -> Path:
    output, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return Path(output.decode())


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def left_in(cache: Cache) -> list[str]:
    return [file.name for half in ("work", "partial") for file in (cache.root / half).iterdir()]


async def test_concurrent_processes_build_once(ask: Ask, cache: Cache, go: "FakeGo") -> None:
    go.hold()
    first = await ask()
    await go.pid()
    second = await ask()
    await says(second, WAITS)
    go.release()
    assert await answer_of(first) == await answer_of(second)
    assert len(go.builds()) == 1
    assert [entry.component for entry in cache.entries()] == ["etcd"]
    assert left_in(cache) == []


async def test_run_after_a_killed_build(ask: Ask, cache: Cache, go: "FakeGo") -> None:
    go.hold()
    killed = await ask()
    pid = await go.pid()
    killed.kill()
    os.killpg(pid, signal.SIGKILL)
    await killed.wait()
    assert len(left_in(cache)) == 2
    assert cache.entries() == []
    go.release()
    assert (await answer_of(await ask())).exists()
    assert left_in(cache) == []
    assert cache.verify() == []


async def test_surviving_go_is_awaited(ask: Ask, cache: Cache, go: "FakeGo") -> None:
    go.hold()
    killed = await ask()
    pid = await go.pid()
    killed.kill()
    await killed.wait()
    next_one = await ask()
    await says(next_one, WAITS)
    assert alive(pid)
    assert len(go.builds()) == 1
    go.release()
    assert (await answer_of(next_one)).exists()
    assert not alive(pid)
    assert left_in(cache) == []


async def test_ctrl_c_ends_go_too(ask: Ask, cache: Cache, go: "FakeGo") -> None:
    go.hold()
    interrupted = await ask()
    pid = await go.pid()
    interrupted.send_signal(signal.SIGINT)
    _, complaints = await interrupted.communicate()
    assert "etcd v3.6.5: go build: failed: stopped" in complaints.decode().splitlines()
    assert interrupted.returncode not in {0, None}
    assert not alive(pid)
    assert left_in(cache) == []
    assert cache.entries() == []
    go.release()
    assert (await answer_of(await ask())).exists()
