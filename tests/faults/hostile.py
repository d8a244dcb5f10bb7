"""Hostile API servers: endless or missing answers, expanding data, and redirects.

Only Capelin's clients get answers without a bound: Cluster API's own managers read them until the
machine has no memory left, and then nothing on it can be measured.
"""

import asyncio
import gzip
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

ALLOWED: Final = "127.0.0.1"
"""An allowed address in the environment of a campaign."""
FORBIDDEN: Final = "127.0.0.2"
"""A forbidden address of the same servers."""
TOKEN: Final = "token-of-the-attacker"
CLIENT: Final = "capelin"
"""The prefix of the user agent of Capelin's managers."""
_ENDS: Final = (
    OSError,
    asyncio.CancelledError,
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
)
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_BOMB: Final = gzip.compress(b"a" * (64 << 20))
_DEEP: Final = b'{"metadata":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

Responder = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request that arrived at a hostile server."""

    path: str
    client: str
    """The client in the user agent."""
    token: str
    """The bearer token, if the request has one."""


@dataclass
class HostileServers:
    """One server of each kind, with the requests that arrived."""

    ports: dict[str, int] = field(default_factory=dict[str, int])
    requests: Counter[str] = field(default_factory=Counter[str])
    """Requests by the kind of the server and the client."""
    problems: list[str] = field(default_factory=list[str])

    def receive(self, name: str, address: str, request: Request) -> None:
        """Count a request, and check that Capelin was allowed to send it."""
        self.requests[f"{name} from {request.client}"] += 1
        if not request.client.startswith(CLIENT):
            return
        if address == FORBIDDEN:
            self.problems.append(f"{request.client} connected to {FORBIDDEN}")
        if request.path.startswith("/redirected"):
            self.problems.append(f"{request.client} followed a redirect")
        if request.token not in ("", TOKEN):
            self.problems.append(f"{request.client} sent a token that is not the attacker's")

    def reached_by(self, client: str) -> int:
        """How many requests of a program arrived."""
        return sum(count for name, count in self.requests.items() if f" from {client}" in name)


def read_request(head: bytes) -> Request | None:
    """The request in a head, or `None` if it is not HTTP, such as a TLS handshake."""
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/"):
        return None
    fields = {
        name.strip().lower(): value.strip()
        for name, separator, value in (line.partition(":") for line in lines)
        if separator
    }
    agent = fields.get("user-agent", "").split("/")[0].split(" ")[0] or "unknown"
    return Request(parts[1], agent, fields.get("authorization", "").removeprefix("Bearer "))


async def _endless(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"\r\n" + b'{"items": ["')
    while True:
        writer.write(b"a" * 65536)
        await writer.drain()


async def _bomb(writer: asyncio.StreamWriter) -> None:
    head = _HEAD + b"Content-Encoding: gzip\r\n"
    writer.write(head + f"Content-Length: {len(_BOMB)}\r\n\r\n".encode() + _BOMB)
    await writer.drain()


async def _deep(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + f"Content-Length: {len(_DEEP)}\r\n\r\n".encode() + _DEEP)
    await writer.drain()


async def _silent(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    await asyncio.sleep(3600)


async def _slow(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(1)


async def _redirect(writer: asyncio.StreamWriter) -> None:
    port = writer.get_extra_info("sockname")[1]
    location = f"Location: http://{ALLOWED}:{port}/redirected\r\n"
    writer.write(f"HTTP/1.1 302 Found\r\n{location}Content-Length: 0\r\n\r\n".encode())
    await writer.drain()


RESPONDERS: Final[Mapping[str, Responder]] = {
    "endless": _endless,
    "bomb": _bomb,
    "deep": _deep,
    "silent": _silent,
    "slow": _slow,
    "redirect": _redirect,
}

_UNBOUNDED: Final = frozenset({"endless", "bomb"})


@asynccontextmanager
async def hostile_servers() -> AsyncGenerator[HostileServers]:
    """One hostile server of each kind, at an allowed and at a forbidden loopback address."""
    servers = HostileServers()
    async with AsyncExitStack() as stack:
        for name, respond in RESPONDERS.items():
            port = 0
            for address in (ALLOWED, FORBIDDEN):
                serve = _server(servers, name, address, respond)
                server = await asyncio.start_server(serve, address, port)
                port = server.sockets[0].getsockname()[1]
                stack.callback(server.close)
            servers.ports[name] = port
        yield servers


def _server(
    servers: HostileServers, name: str, address: str, respond: Responder
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*_ENDS):
            request = read_request(await reader.readuntil(b"\r\n\r\n"))
            if request is not None:
                servers.receive(name, address, request)
                if name not in _UNBOUNDED or request.client.startswith(CLIENT):
                    await respond(writer)
        writer.close()

    return serve
