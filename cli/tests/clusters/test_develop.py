"""Restarts of providers by `capelin dev`."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
from capelin.testing.waiting import until
from capelin_cli.clusters.up import follow_code


class Environment:
    """Providers, their restarts, and a restart that a test can delay."""

    def __init__(self) -> None:
        self.code = {"infrastructure-one": "a", "control-plane-two": "a"}
        self.looks = 0
        self.restarts: list[list[str]] = []
        self.completed = 0
        self.may_complete = asyncio.Event()
        self.may_complete.set()
        self.error: Exception | None = None

    def digests(self) -> dict[str, str]:
        self.looks += 1
        return dict(self.code)

    async def restart(self, labels: Sequence[str]) -> None:
        self.restarts.append([*labels])
        await self.may_complete.wait()
        if self.error is not None:
            raise self.error
        self.completed += 1

    async def is_looked_at(self) -> None:
        """Wait until two more scans of the code are done."""
        looks = self.looks + 2
        await until(lambda: self.looks >= looks, within=10)

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None]:
        following = asyncio.create_task(
            follow_code(self.digests(), self.digests, self.restart, poll=0.001)
        )
        await self.is_looked_at()
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_a_changed_provider_restarts_once() -> None:
    environment = Environment()
    async with environment.followed():
        assert environment.restarts == []
        environment.code["infrastructure-one"] = "b"
        await until(lambda: environment.completed == 1, within=10)
        await environment.is_looked_at()
        environment.code["control-plane-two"] = "b"
        await until(lambda: environment.completed == 2, within=10)
    assert environment.restarts == [["infrastructure-one"], ["control-plane-two"]]


async def test_a_change_during_a_restart_starts_another_restart() -> None:
    environment = Environment()
    environment.may_complete.clear()
    async with environment.followed():
        environment.code["infrastructure-one"] = "b"
        await until(lambda: len(environment.restarts) == 1, within=10)
        environment.code["infrastructure-one"] = "c"
        await until(lambda: len(environment.restarts) == 2, within=10)
        environment.may_complete.set()
        await until(lambda: environment.completed == 1, within=10)
        await environment.is_looked_at()
    assert (len(environment.restarts), environment.completed) == (2, 1)


async def test_files_saved_together_cause_one_restart() -> None:
    environment = Environment()
    states, last = iter([{"one": "b"}]), {"one": "c"}
    following = asyncio.create_task(
        follow_code({"one": "a"}, lambda: next(states, last), environment.restart, poll=0.001)
    )
    await until(lambda: environment.completed == 1, within=10)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert environment.restarts == [["one"]]


async def test_an_unexpected_error_ends_the_command() -> None:
    environment = Environment()
    environment.error = ZeroDivisionError()
    following = asyncio.create_task(
        follow_code(environment.digests(), environment.digests, environment.restart, poll=0.001)
    )
    await environment.is_looked_at()
    environment.code["infrastructure-one"] = "b"
    with pytest.raises(ZeroDivisionError):
        await following
