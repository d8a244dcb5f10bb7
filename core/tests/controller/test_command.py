import asyncio
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from capelin.client import LeadershipLost
from capelin.controller import Options, Reconciler, main

HALF_A_KEY = "-----BEGIN PRIVATE KEY-----\nhunter2"


def nothing(_: Options) -> list[Reconciler[Any]]:
    return []


def run(*arguments: str, **environ: str) -> int:
    return main("capelin-test", nothing, arguments=arguments, environ=environ)


def test_main_reports_all_invalid_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--concurrency=x", CAPELIN_NAMESPACE="A") == 2
    namespace, concurrency = capsys.readouterr().err.splitlines()
    assert namespace.startswith('capelin-test: CAPELIN_NAMESPACE: "A" is not a name: use')
    assert concurrency == 'capelin-test: --concurrency: "x" is not a whole number'


def test_main_exits_and_hides_secrets_if_build_fails(
    start: Any, monkeypatch: pytest.MonkeyPatch, kubeconfig: Path
) -> None:
    stream = start("text", 0)
    monkeypatch.setattr("sys.stderr", stream)

    def fail(_: Options) -> list[Reconciler[Any]]:
        raise RuntimeError(HALF_A_KEY)

    arguments = [f"--kubeconfig={kubeconfig}"]
    assert main("capelin-test", fail, arguments=arguments, environ={}) == 1
    assert "The manager failed" in stream.getvalue()
    assert "RuntimeError: (hidden)" in stream.getvalue()


def test_main_exits_if_the_kubeconfig_is_missing(
    start: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stream = start("text", 0)
    monkeypatch.setattr("sys.stderr", stream)
    path = tmp_path / "nowhere"
    assert run(f"--kubeconfig={path}") == 1
    assert f"kubeconfig {path} cannot be read" in stream.getvalue()


def test_help_names_the_manager(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--help")
    assert caught.value.code == 0
    assert "Runs the controllers of capelin-test." in capsys.readouterr().out


class Idle:
    """A manager whose process is idle."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.stopping = asyncio.Event()
        self.deaf = deaf

    def stop(self) -> None:
        self.stopping.set()

    async def run(self) -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await self.stopping.wait()
        if self.deaf:
            sys.stdout.write("stopping\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


class Deposed:
    """A manager without its lease and with a thread that does not end."""

    def stop(self) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        raise LeadershipLost("lost")


async def started(manager: str) -> asyncio.subprocess.Process:
    """A process that serves one of the managers above."""
    script = (
        "import asyncio, runpy; from capelin.controller.manager import serve; "
        f"asyncio.run(serve(eval({manager!r}, runpy.run_path({__file__!r}))))"
    )
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )


async def expect_line(process: asyncio.subprocess.Process, line: str) -> None:
    assert process.stdout is not None
    assert (await process.stdout.readline()).decode() == f"{line}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_an_idle_manager(number: signal.Signals) -> None:
    process = await started("Idle()")
    await expect_line(process, "ready")
    process.send_signal(number)
    assert await process.wait() == 0


async def test_a_second_signal_ends_the_process_at_once() -> None:
    process = await started("Idle(deaf=True)")
    await expect_line(process, "ready")
    process.terminate()
    await expect_line(process, "stopping")
    process.terminate()
    assert await process.wait() == -signal.SIGTERM


async def test_losing_the_lease_ends_a_process_with_running_threads() -> None:
    process = await started("Deposed()")
    assert await process.wait() == 1
