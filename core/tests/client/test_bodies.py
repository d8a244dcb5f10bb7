"""Bodies of responses, in several parts."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import aiohttp
from capelin.client import read_at_most


class Arriving:
    """A response whose body arrives in parts."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.content = aiohttp.StreamReader(Mock(_reading_paused=False), 2**16, loop=loop)
        self.close = Mock()

    def as_response(self) -> aiohttp.ClientResponse:
        parts: Any = SimpleNamespace(content=self.content, close=self.close)
        return cast("aiohttp.ClientResponse", parts)


async def test_a_body_has_all_its_parts() -> None:
    response = Arriving()
    reading = asyncio.create_task(read_at_most(response.as_response(), 10))
    for part in (b"one", b"two"):
        response.content.feed_data(part)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    response.content.feed_eof()
    assert await reading == b"onetwo"
    response.close.assert_not_called()


async def test_a_body_above_the_limit_ends_the_connection() -> None:
    response = Arriving()
    response.content.feed_data(b"12345678901")
    assert await read_at_most(response.as_response(), 10) is None
    response.close.assert_called_once()
