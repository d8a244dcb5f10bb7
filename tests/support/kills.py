"""Providers that are killed at their writes. Every operation continues after any of them."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from capelin.client import Request, Response
from capelin.testing.fake_client import Clock
from capelin.testing.fake_server import FakeServer

T = TypeVar("T")


class KilledError(BaseException):
    """The provider is killed."""


@dataclass
class Life:
    """The writes that a provider may still do. It is killed at the next one."""

    writes: int | None = None
    """None if nothing kills it."""
    count: int = 0
    """All writes until now."""

    def write(self) -> None:
        if self.writes is not None:
            if self.writes <= 0:
                raise KilledError
            self.writes -= 1
        self.count += 1


class MortalServer(FakeServer):
    """An API server of which one client is killed before one of its writes."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock or Clock())
        self.life = Life()

    async def send(self, request: Request) -> Response:
        if request.method != "GET":
            self.life.write()
        return await super().send(request)


async def killed_after_each_write(
    live: Callable[[], Coroutine[Any, Any, T]], life: Life | None = None
) -> T:
    """Let providers live one after the other, until one of them completes an operation.

    Args:
        live: The life of a new provider.
        life: Its writes: one for each provider. None if `live` itself kills it.
    """
    async with asyncio.timeout(60):
        while True:
            if life is not None:
                life.writes = 1
            with suppress(KilledError):
                return await live()
