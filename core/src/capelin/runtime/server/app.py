"""The ASGI application of an extension: hooks first, documents for all else.

Hooks do not pass through FastAPI: its way from bytes to a function costs more than most handlers
do (docs/decisions/0040-hooks-before-fastapi.md).
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import cached_property, lru_cache, partial
from typing import Any
from urllib.parse import parse_qs

from capelin.api.durations import parse_duration
from capelin.runtime.answering import Answered, Endpoint, endpoints
from capelin.runtime.extension import Extension
from capelin.runtime.server.bodies import (
    MAX_BODY_BYTES,
    BodyTooLargeError,
    ClientGoneError,
    Receive,
    read_body,
)
from capelin.runtime.server.metrics import Counter, Metrics
from capelin.runtime.server.watch import AnsweredError, TimeOverError, Watch

Scope = Mapping[str, Any]
Send = Callable[[Any], Awaitable[None]]

_JSON = (b"content-type", b"application/json")
_CLOSE = (b"connection", b"close")


class App:
    """Answers hooks, and shows the documents of an extension."""

    def __init__(self, extension: Extension, counter: Counter | None = None) -> None:
        extension.check()
        self._extension = extension
        self._endpoints = endpoints(extension)
        handlers = [endpoint.handler for endpoint in self._endpoints.values()]
        self._counter = counter or Metrics(handlers).process(0)
        self._watch = Watch()
        self.closing = False
        """Whether clients are asked to open their next connection elsewhere."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(self._extension, receive, send)
            return
        endpoint = self._endpoints.get(scope["path"])
        if endpoint is None or scope["method"] != "POST":
            await self._documents(scope, receive, send)
            return
        start = time.perf_counter()
        seconds = patience(endpoint.handler.timeout_seconds, scope["query_string"])
        late = partial(self._too_late, send, endpoint, start)
        try:
            with self._watch.call(receive, seconds, late) as call:
                body = await read_body(receive)
                call.heard = True
                answered = await endpoint.answer(body)
            await self._send(send, answered)
            outcome = answered.outcome
        except TimeOverError:
            await late()
            return
        except AnsweredError as answered:
            await answered.telling
            return
        except BodyTooLargeError:
            outcome = "failure"
            limit = f"{MAX_BODY_BYTES // 2**20} MiB"
            await self._send(send, endpoint.failure(f"takes no request above {limit}"), last=True)
        except ClientGoneError:
            outcome = "abandoned"
        self._counter.count(endpoint.handler.path, outcome, time.perf_counter() - start)

    async def _too_late(self, send: Send, endpoint: Endpoint, start: float) -> None:
        await self._send(send, endpoint.failure("did not answer in time"), last=True)
        self._counter.count(endpoint.handler.path, "timeout", time.perf_counter() - start)

    async def _send(self, send: Send, answered: Answered, *, last: bool = False) -> None:
        headers = [_JSON, (b"content-length", b"%d" % len(answered.body))]
        if last or self.closing:
            headers.append(_CLOSE)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answered.body})

    @cached_property
    def _documents(self) -> Any:
        # Most processes never show a document, and FastAPI is a fifth of their memory.
        from capelin.runtime.server.documents import documents  # noqa: PLC0415

        return documents(self._extension)


@lru_cache(maxsize=256)
def patience(timeout_seconds: int, query: bytes) -> float:
    """For how long a call may last, so that its caller still gets the answer.

    The caller says how long it waits in `?timeout=10s`.
    """
    waits = float(timeout_seconds)
    for said in parse_qs(query.decode("latin-1")).get("timeout", ()):
        try:
            waits = min(waits, parse_duration(said).total_seconds())
        except ValueError:
            continue
    return max(waits * 0.8, waits - 0.5)


async def _live(extension: Extension, receive: Receive, send: Send) -> None:
    """Open what the extension needs, and close it at the end."""
    await receive()
    async with AsyncExitStack() as stack:
        try:
            if extension.lifespan is not None:
                await stack.enter_async_context(extension.lifespan())
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})
