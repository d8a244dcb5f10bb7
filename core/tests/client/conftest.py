"""A real API server, and a scripted one for faults that a real one does not produce on demand."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from capelin.client import Client, ClientOptions, Config, Server, User


@dataclass(frozen=True)
class Request:
    """A request as the server received it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)


Step = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Scripted:
    """Answers each request with the next step, on any number of connections."""

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[Request] = []
        self.connections = 0
        self.received = asyncio.Condition()
        self._steps: list[Step] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=tls)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"{'https' if tls else 'http'}://127.0.0.1:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def then(self, *steps: Step) -> "Scripted":
        self._steps.extend(steps)
        return self

    def client(self, user: User | None = None, **options: Any) -> Client:
        config = Config(Server(self.address), user or User())
        return Client(config, manager="test", options=ClientOptions(**options))

    @staticmethod
    def reply(status: int, body: Any = None, **headers: str) -> Step:
        """A complete response. Keyword arguments are headers, with `_` for `-`."""
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        fields = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        fields |= {key.replace("_", "-"): value for key, value in headers.items()}
        head = "".join(f"{key}: {value}\r\n" for key, value in fields.items())

        async def step(writer: asyncio.StreamWriter) -> None:
            writer.write(f"HTTP/1.1 {status} So\r\n{head}\r\n".encode() + data)

        return step

    @staticmethod
    def failure(status: int, reason: str, **headers: str) -> Step:
        """A response with a `Status` object."""
        body = {
            "kind": "Status",
            "code": status,
            "reason": reason,
            "message": f"it is {reason}",
            "details": {"name": "a"},
        }
        return Scripted.reply(status, body, **headers)

    @staticmethod
    async def hang_up(writer: asyncio.StreamWriter) -> None:
        """Reset the connection instead of sending a response."""
        writer.transport.abort()

    @staticmethod
    async def stay_silent(writer: asyncio.StreamWriter) -> None:
        """Let the client wait until it disconnects."""

    @staticmethod
    def stream(*pieces: Any, ending: Step | None = None) -> Step:
        """A chunked response of JSON lines or raw bytes, followed by its end or by `ending`."""

        async def step(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
            for piece in pieces:
                data = piece if isinstance(piece, bytes) else json.dumps(piece).encode() + b"\n"
                writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                await writer.drain()
            if ending is None:
                writer.write(b"0\r\n\r\n")
            else:
                await ending(writer)

        return step

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while request := await self._read(reader):
                async with self.received:
                    self.requests.append(request)
                    self.received.notify_all()
                step = self._steps.pop(0) if self._steps else self.reply(500, {"the": "end"})
                await step(writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, target, _ = first.split(" ")
        pairs = (line.partition(": ") for line in lines if line)
        headers = [(name.lower(), value) for name, _, value in pairs]
        length = int(dict(headers).get("content-length", 0))
        return Request(method, target, headers, await reader.readexactly(length))


Serve = Callable[[ssl.SSLContext | None], Awaitable[Scripted]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts scripted servers, with TLS or without."""
    started: list[Scripted] = []

    async def start(tls: ssl.SSLContext | None) -> Scripted:
        server = Scripted()
        started.append(server)
        await server.start(tls)
        return server

    yield start
    for server in started:
        await server.stop()


@pytest.fixture
async def server(serve: Serve) -> Scripted:
    """A scripted server without TLS."""
    return await serve(None)


@pytest.fixture(scope="session")
async def client(kubeconfig: Path) -> AsyncIterator[Client]:
    """A client of the real API server with administrator rights and no rate limit."""
    config = Config.from_kubeconfig(kubeconfig)
    async with Client(config, manager="test", options=ClientOptions(qps=0)) as client:
        yield client
