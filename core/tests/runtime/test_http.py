"""Writes of a connection are combined."""

import asyncio
from typing import Any

import pytest
from capelin.runtime.server.http import BufferedTransport


class Wire(asyncio.Transport):
    """Records each write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"sslcontext": "context"}.get(name, default)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def buffered(wire: Wire) -> BufferedTransport:
    return BufferedTransport(wire, asyncio.get_running_loop())


async def test_a_head_and_its_body_are_sent_together(
    wire: Wire, buffered: BufferedTransport
) -> None:
    buffered.write(b"head")
    buffered.write(b"body")
    assert wire.written == []
    await asyncio.sleep(0)
    assert wire.written == [b"headbody"]


async def test_the_next_response_is_sent_separately(
    wire: Wire, buffered: BufferedTransport
) -> None:
    for answer in (b"one", b"two"):
        buffered.write(answer)
        await asyncio.sleep(0)
    assert wire.written == [b"one", b"two"]


async def test_close_sends_buffered_data(wire: Wire, buffered: BufferedTransport) -> None:
    buffered.write(b"last data")
    buffered.close()
    assert buffered.is_closing()
    assert wire.written == [b"last data"]
    await asyncio.sleep(0)
    assert wire.written == [b"last data"]


async def test_buffered_data_is_not_sent_after_a_disconnect(
    wire: Wire, buffered: BufferedTransport
) -> None:
    buffered.write(b"too late")
    wire.close()
    await asyncio.sleep(0)
    assert wire.written == []


async def test_get_extra_info_forwards_to_the_transport(buffered: BufferedTransport) -> None:
    assert buffered.get_extra_info("sslcontext") == "context"
    assert buffered.get_extra_info("socket", 1) == 1
