"""Reconcilers yield to hooks, but for a bounded time."""

import asyncio

import pytest
from capelin_lifecycle.reconcilers.priority import HookPriority


async def test_steps_start_at_once_without_hooks() -> None:
    priority = HookPriority()
    with priority.answering():
        pass
    async with asyncio.timeout(10):
        await asyncio.gather(*(priority.turn() for _ in range(1000)))


async def test_a_step_starts_when_the_hooks_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capelin_lifecycle.reconcilers.priority._LONGEST_WAIT", 60)
    priority = HookPriority()
    with priority.answering():
        with priority.answering():
            step = asyncio.create_task(priority.turn())
            await asyncio.sleep(0)
        # One hook is still answering.
        await asyncio.sleep(0)
        assert not step.done()
    await asyncio.wait_for(step, 10)


async def test_steps_start_between_hook_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("capelin_lifecycle.reconcilers.priority._LONGEST_WAIT", 0.01)
    priority = HookPriority()
    with priority.answering():
        async with asyncio.timeout(10):
            await asyncio.gather(*(priority.turn() for _ in range(3)))
