"""What the platform asks in plain HTTP: is it alive, is it ready, what has it counted."""

from collections.abc import Awaitable, Callable
from typing import Any

from capelin.runtime.server.metrics import Metrics

Pages = dict[str, Callable[[], tuple[int, str]]]


class Probes:
    """An ASGI application with `/healthz`, `/readyz` and `/metrics`."""

    def __init__(self, metrics: Metrics, is_ready: Callable[[], bool]) -> None:
        self._pages: Pages = {
            "/healthz": lambda: (200, "ok"),
            "/readyz": lambda: (200, "ok") if is_ready() else (503, "not ready"),
            "/metrics": lambda: (200, metrics.page()),
        }

    async def __call__(
        self, scope: Any, _receive: object, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Answer one request."""
        page = self._pages.get(scope["path"])
        status, text = (404, "not found") if page is None else page()
        headers = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode()})
