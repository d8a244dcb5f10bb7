"""Programs run to their end, and end with their caller."""

import asyncio
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from capelin.programs import ProgramResult, run_program
from capelin.testing.waiting import until


async def test_the_result_has_the_exit_code_the_output_and_the_errors() -> None:
    ended = await run_program(
        "sh", "-c", "echo $WORD; echo '  why ' >&2; exit 3", env={"WORD": "a"}
    )
    assert ended == ProgramResult(3, b"a\n", "why")


async def test_the_user_can_read_errors_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    ended = await run_program("sh", "-c", "echo why >&2", keeps_errors=False)
    assert ended == ProgramResult(0, b"", "")
    assert capfd.readouterr().err == "why\n"


async def test_a_missing_program_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await run_program("/missing/program")


@pytest.fixture(params=["SIGINT of a terminal", "SIGINT ignored, as in a background job"])
def shell(request: pytest.FixtureRequest) -> Iterator[None]:
    ignored = "ignored" in request.param
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("shell")
@pytest.mark.parametrize("ends_by", [signal.SIGKILL, signal.SIGINT])
async def test_a_program_ends_with_its_caller(tmp_path: Path, ends_by: signal.Signals) -> None:
    cleaned = tmp_path / "cleaned"
    # More output than a pipe holds.
    trap = f"trap 'head -c 1000000 /dev/zero; touch {cleaned}; exit' INT"
    running, number = await started(tmp_path, trap, ends_by)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert has_ended(number)
    assert cleaned.exists() == (ends_by == signal.SIGINT)


async def test_a_program_that_does_not_clean_up_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin.programs._GRACE_SECONDS", 0.1)
    running, number = await started(tmp_path, "trap '' INT", signal.SIGINT)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: has_ended(number))


async def test_a_child_that_keeps_the_output_open_does_not_delay_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin.programs._GRACE_SECONDS", 0.1)
    child = tmp_path / "child"
    running, number = await started(tmp_path, f"sleep 60 & echo $! > {child}")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    # A transport that is still open warns when it is collected.
    del running
    gc.collect()
    os.kill(int(child.read_text()), signal.SIGKILL)
    await until(lambda: has_ended(number))


async def started(
    folder: Path, preparation: str, ends_by: signal.Signals = signal.SIGKILL
) -> tuple[asyncio.Task[ProgramResult], int]:
    """A shell that waits after its preparation, and its process id."""
    file = folder / "started"
    command = f"{preparation}; echo $$ > {file}; while :; do sleep 0.05; done"
    running = asyncio.create_task(run_program("sh", "-c", command, ends_by=ends_by))

    async def pid() -> str:
        return file.read_text().strip() if file.exists() else ""

    return running, int(await until(pid, len))


def has_ended(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    return False
