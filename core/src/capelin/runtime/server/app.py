"""The ASGI application of an extension: hooks, and FastAPI for all other paths.

Hooks bypass FastAPI, which costs more per request than most handlers do (decision 40).
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import cached_property, lru_cache, partial
from typing import Any
from urllib.parse import parse_qs

from capelin import tracing
from capelin.api import parse_duration
from capelin.body_budget import BodyBudget, OverloadedError
from capelin.runtime.dispatch import EncodedResponse, HandlerRunner, handler_runners
from capelin.runtime.extension import Extension
from capelin.runtime.server.body import (
    MAX_BODY_BYTES,
    MAX_TOTAL_BYTES,
    BodyTooLargeError,
    ClientGoneError,
    Receive,
    read_body,
    replayed,
)
from capelin.runtime.server.deadlines import DeadlineExceededError, Deadlines, RespondedError
from capelin.runtime.server.metrics import Metrics
from capelin.runtime.v1alpha1.discovery import MAX_TIMEOUT_SECONDS

_log = logging.getLogger(__name__)

Scope = Mapping[str, Any]
Send = Callable[[Any], Awaitable[None]]

_JSON = (b"content-type", b"application/json")
_CLOSE = (b"connection", b"close")

_STATUS = {DeadlineExceededError: 504, BodyTooLargeError: 413, OverloadedError: 503}

_MAX_QUERY_BYTES = 256


class App:
    """Serves the hooks of an extension, and its OpenAPI document."""

    def __init__(self, extension: Extension) -> None:
        extension.check()
        self._extension = extension
        self._runners = handler_runners(extension)
        self.metrics = Metrics(runner.handler for runner in self._runners.values())
        self._deadlines = Deadlines()
        self._budget = BodyBudget(MAX_TOTAL_BYTES)
        self.closing = False
        """Whether clients should open their next connection to another server."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _run_lifespan(self._extension, receive, send)
            return
        runner = self._runners.get(scope["path"])
        if runner is None or scope["method"] != "POST":
            await self._other(scope, receive, send)
            return
        handler = runner.handler
        hook = handler.hook.id.name
        with tracing.span("hook", hook, scope["headers"], handler=handler.name) as span:
            outcome = await self._call(runner, scope, receive, send)
            span.end(outcome, failed=outcome in {"failure", "timeout"})

    async def _call(self, runner: HandlerRunner, scope: Scope, receive: Receive, send: Send) -> str:
        start = time.perf_counter()
        seconds = time_limit(runner.handler.timeout_seconds, scope["query_string"])
        late = partial(self._respond_late, send, runner, start)
        try:
            with self._deadlines.call(receive, seconds, late) as call:
                try:
                    body = await read_body(receive, call, self._budget)
                    call.body_read = True
                    response = await runner.respond(body)
                finally:
                    self._budget.release(call)
            await self._send(send, response)
            outcome = response.outcome
        except DeadlineExceededError:
            await late()
            return "timeout"
        except RespondedError as error:
            await error.responding
            return "timeout"
        except BodyTooLargeError:
            outcome = "failure"
            limit = f"{MAX_BODY_BYTES // 2**20} MiB"
            await self._send(send, runner.failure(f"accepts no request above {limit}"), last=True)
        except OverloadedError:
            outcome = "failure"
            await self._send(send, runner.failure("has too many large requests"), last=True)
        except ClientGoneError:
            outcome = "abandoned"
        self.metrics.count(runner.handler.path, outcome, time.perf_counter() - start)
        return outcome

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A mounted application or the documents, within the bounds of hooks."""
        status, started = 504, False

        async def track(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        async def fail() -> None:
            if not started:
                headers = [(b"content-length", b"0"), _CLOSE]
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body"})

        try:
            with self._deadlines.call(receive, MAX_TIMEOUT_SECONDS, fail) as call:
                try:
                    body = await read_body(receive, call, self._budget)
                    await self._documents(scope, replayed(body, receive), track)
                finally:
                    self._budget.release(call)
        except RespondedError as error:
            await error.responding
        except ClientGoneError:
            return
        except (DeadlineExceededError, BodyTooLargeError, OverloadedError) as error:
            status = _STATUS[type(error)]
            await fail()

    async def _respond_late(self, send: Send, runner: HandlerRunner, start: float) -> None:
        _log.warning("handler %s did not respond in time", runner.handler.name)
        await self._send(send, runner.failure("did not respond in time"), last=True)
        self.metrics.count(runner.handler.path, "timeout", time.perf_counter() - start)

    async def _send(self, send: Send, response: EncodedResponse, *, last: bool = False) -> None:
        headers = [_JSON, (b"content-length", b"%d" % len(response.body))]
        if last or self.closing:
            headers.append(_CLOSE)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    @cached_property
    def _documents(self) -> Any:
        # Few processes ever serve it, and FastAPI uses a fifth of their memory.
        from capelin.runtime.server.openapi_ui import openapi_app  # noqa: PLC0415

        return openapi_app(self._extension)


def time_limit(timeout_seconds: int, query: bytes) -> float:
    """The time limit of a call, so that its caller still gets a response.

    The caller sends its own timeout in `?timeout=10s`. Cluster API never sends longer queries.
    """
    return _time_limit(timeout_seconds, query if len(query) <= _MAX_QUERY_BYTES else b"")


@lru_cache(maxsize=256)
def _time_limit(timeout_seconds: int, query: bytes) -> float:
    limit = float(timeout_seconds)
    for value in parse_qs(query.decode("latin-1")).get("timeout", ()):
        try:
            limit = min(limit, parse_duration(value).total_seconds())
        except ValueError:
            continue
    return max(limit * 0.8, limit - 0.5)


async def _run_lifespan(extension: Extension, receive: Receive, send: Send) -> None:
    await receive()
    async with AsyncExitStack() as stack:
        try:
            if extension.lifespan is not None:
                await stack.enter_async_context(extension.lifespan())
            for app in extension.mounts.values():
                if (router := getattr(app, "router", None)) is not None:
                    await stack.enter_async_context(router.lifespan_context(app))
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})
