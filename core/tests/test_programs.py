"""Programs run to their end, and end with their caller."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from capelin.programs import Ended, run_program
from capelin.testing.waiting import until


async def test_the_result_has_the_exit_code_the_output_and_the_errors() -> None:
    ended = await run_program(
        "sh", "-c", "echo $WORD; echo '  why ' >&2; exit 3", env={"WORD": "a"}
    )
    assert ended == Ended(3, b"a\n", "why")


async def test_the_user_can_read_errors_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    ended = await run_program("sh", "-c", "echo why >&2", keeps_errors=False)
    assert ended == Ended(0, b"", "")
    assert capfd.readouterr().err == "why\n"


async def test_a_missing_program_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await run_program("/missing/program")


@pytest.mark.parametrize("ends_by", [signal.SIGKILL, signal.SIGINT])
async def test_a_program_ends_with_its_caller(tmp_path: Path, ends_by: signal.Signals) -> None:
    started, cleaned = tmp_path / "started", tmp_path / "cleaned"
    script = f"trap 'touch {cleaned}; exit' INT; echo $$ > {started}; while :; do sleep 0.05; done"
    running = asyncio.create_task(run_program("sh", "-c", script, ends_by=ends_by))

    async def pid() -> str:
        return started.read_text().strip() if started.exists() else ""

    number = int(await until(pid, len))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
    assert cleaned.exists() == (ends_by == signal.SIGINT)
