"""What a connection writes leaves together."""

import asyncio
from typing import Any

import pytest
from capelin.runtime.server.http import BufferedTransport


class Wire(asyncio.Transport):
    """Remembers what was written, piece by piece."""

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
async def gathering(wire: Wire) -> BufferedTransport:
    return BufferedTransport(wire, asyncio.get_running_loop())


async def test_a_head_and_its_body_leave_together(wire: Wire, gathering: BufferedTransport) -> None:
    gathering.write(b"head")
    gathering.write(b"body")
    assert wire.written == []
    await asyncio.sleep(0)
    assert wire.written == [b"headbody"]


async def test_the_next_answer_leaves_on_its_own(wire: Wire, gathering: BufferedTransport) -> None:
    for answer in (b"one", b"two"):
        gathering.write(answer)
        await asyncio.sleep(0)
    assert wire.written == [b"one", b"two"]


async def test_what_is_left_leaves_before_the_end(wire: Wire, gathering: BufferedTransport) -> None:
    gathering.write(b"last words")
    gathering.close()
    assert gathering.is_closing()
    assert wire.written == [b"last words"]
    await asyncio.sleep(0)
    assert wire.written == [b"last words"]


async def test_no_write_after_a_disconnect(wire: Wire, gathering: BufferedTransport) -> None:
    gathering.write(b"too late")
    wire.close()
    await asyncio.sleep(0)
    assert wire.written == []


async def test_what_is_known_of_the_connection_is_known_still(gathering: BufferedTransport) -> None:
    assert gathering.get_extra_info("sslcontext") == "context"
    assert gathering.get_extra_info("socket", 1) == 1
