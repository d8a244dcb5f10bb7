"""The other tasks of a reconciler: their failures are visible, and they start again."""

import asyncio

import pytest
from capelin.controller.background import Background
from capelin.testing.waiting import until


class Task:
    """Fails once, and then works until it is cancelled."""

    def __init__(self) -> None:
        self.starts = 0

    async def run(self) -> None:
        self.starts += 1
        if self.starts == 1:
            raise OSError("disk full")
        await asyncio.Event().wait()


async def test_failed_task_is_reported_and_starts_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin.controller.background._PAUSE", 0.01)
    monkeypatch.setattr("capelin.controller.background._WORKS", 1.0)
    background, task = Background(), Task()
    async with background.running(sweep=task.run):
        await until(
            background.health, lambda problem: problem == "sweep failed: OSError: disk full"
        )
        await until(lambda: task.starts == 2)
        await until(background.health, lambda problem: problem is None)
    assert "The task sweep failed and starts again" in caplog.text


async def test_task_that_ends_is_done() -> None:
    background, ran = Background(), asyncio.Event()

    async def work() -> None:
        ran.set()

    async with background.running(work=work):
        await ran.wait()
    assert background.health() is None
