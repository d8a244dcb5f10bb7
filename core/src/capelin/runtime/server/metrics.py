"""Metrics of calls, and the pages of the platform: liveness, readiness and metrics."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from capelin.runtime.extension import Handler

OUTCOMES = ("success", "retry", "failure", "timeout", "abandoned")
"""How calls end: the last two when the caller would not wait, or did not."""

BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Upper bounds of durations in seconds."""

_LABELS = ("handler", "hook", "group", "version")


class Metrics:
    """The metrics of all handlers, by the path of each."""

    def __init__(self, handlers: Iterable[Handler]) -> None:
        self._registry = CollectorRegistry()
        requests = Counter(
            "capelin_runtime_requests",
            "Calls by outcome.",
            [*_LABELS, "outcome"],
            registry=self._registry,
        )
        durations = Histogram(
            "capelin_runtime_request_duration_seconds",
            "Durations of calls.",
            _LABELS,
            buckets=BUCKETS,
            registry=self._registry,
        )
        deprecated = Counter(
            "capelin_runtime_deprecated_requests",
            "Calls in a deprecated version of a hook.",
            [*_LABELS, "since", "replaced_by"],
            registry=self._registry,
        )
        self._requests: dict[tuple[str, str], Counter] = {}
        self._durations: dict[str, Histogram] = {}
        self._deprecated: dict[str, Counter] = {}
        for handler in handlers:
            hook, path = handler.hook.id, handler.path
            labels = (handler.name, hook.name, hook.group, hook.version)
            for outcome in OUTCOMES:
                self._requests[path, outcome] = requests.labels(*labels, outcome)
            self._durations[path] = durations.labels(*labels)
            if (notice := handler.hook.deprecated) is not None:
                self._deprecated[path] = deprecated.labels(
                    *labels, notice.release, notice.replaced_by
                )

    def count(self, path: str, outcome: str, seconds: float) -> None:
        """Count a call."""
        self._requests[path, outcome].inc()
        self._durations[path].observe(seconds)
        if path in self._deprecated:
            self._deprecated[path].inc()

    def page(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class Probes:
    """An ASGI application with `/healthz`, `/readyz` and `/metrics`."""

    def __init__(self, metrics: Metrics, is_ready: Callable[[], bool]) -> None:
        self._pages: dict[str, Callable[[], tuple[int, bytes]]] = {
            "/healthz": lambda: (200, b"ok"),
            "/readyz": lambda: (200, b"ok") if is_ready() else (503, b"not ready"),
            "/metrics": lambda: (200, metrics.page()),
        }

    async def __call__(
        self, scope: Any, _receive: object, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Serve one request."""
        page = self._pages.get(scope["path"])
        status, text = (404, b"not found") if page is None else page()
        headers = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text})
