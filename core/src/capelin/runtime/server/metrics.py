"""Metrics of calls, and the pages for the platform: liveness, readiness and metrics."""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator
from hmac import compare_digest
from itertools import accumulate
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from capelin.hosts import is_loopback
from capelin.runtime.extension import Handler

OUTCOMES = ("success", "retry", "failure", "timeout", "abandoned")
"""How calls end. `timeout`: the caller would not wait longer. `abandoned`: it disconnected."""

BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Upper bounds of durations in seconds."""

_LABELS = ("handler", "hook", "group", "version")


class _Series:
    """The counts of one handler, as plain numbers: others would cost a tenth of a small call."""

    __slots__ = ("buckets", "handler", "outcomes", "seconds")

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0

    @property
    def labels(self) -> tuple[str, ...]:
        hook = self.handler.hook.id
        return (self.handler.name, hook.name, hook.group, hook.version)


class Metrics(Collector):
    """The metrics of all handlers, by the path of each."""

    def __init__(self, handlers: Iterable[Handler]) -> None:
        self._series = {handler.path: _Series(handler) for handler in handlers}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def count(self, path: str, outcome: str, seconds: float) -> None:
        series = self._series[path]
        series.outcomes[outcome] += 1
        series.buckets[bisect_left(BUCKETS, seconds)] += 1
        series.seconds += seconds

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "capelin_runtime_requests", "Calls by outcome.", labels=[*_LABELS, "outcome"]
        )
        durations = HistogramMetricFamily(
            "capelin_runtime_request_duration_seconds", "Durations of calls.", labels=_LABELS
        )
        deprecated = CounterMetricFamily(
            "capelin_runtime_deprecated_requests",
            "Calls in a deprecated version of a hook.",
            labels=[*_LABELS, "since", "replaced_by"],
        )
        for series in self._series.values():
            for outcome, count in series.outcomes.items():
                requests.add_metric([*series.labels, outcome], count)
            below = zip((*map(str, BUCKETS), "+Inf"), accumulate(series.buckets), strict=True)
            durations.add_metric(
                series.labels, [(bound, float(count)) for bound, count in below], series.seconds
            )
            if (notice := series.handler.hook.deprecated) is not None:
                calls = sum(series.outcomes.values())
                labels = [*series.labels, notice.release, notice.replaced_by]
                deprecated.add_metric(labels, calls)
        yield from (requests, durations, deprecated)

    def page(self) -> bytes:
        return generate_latest(self._registry)


class Probes:
    """An ASGI application with `/healthz`, `/readyz` and `/metrics`.

    Metrics name handlers and show activity of tenants, so remote callers need a token.

    Args:
        metrics: The content of `/metrics`.
        is_ready: The content of `/readyz`.
        token_file: The token for callers on other machines. Without it, they cannot read
            metrics.
    """

    def __init__(
        self, metrics: Metrics, is_ready: Callable[[], bool], token_file: Path | None = None
    ) -> None:
        self._token_file = token_file
        self._pages: dict[str, Callable[[], tuple[int, bytes]]] = {
            "/healthz": lambda: (200, b"ok"),
            "/readyz": lambda: (200, b"ok") if is_ready() else (503, b"not ready"),
            "/metrics": lambda: (200, metrics.page()),
        }

    async def __call__(
        self, scope: Any, _receive: object, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        page = self._pages.get(scope["path"])
        status, text = (404, b"not found") if page is None else page()
        if scope["path"] == "/metrics" and not self._may_scrape(scope):
            status, text = 401, b"/metrics needs the token of --metrics-token-file"
        headers = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    def _may_scrape(self, scope: Any) -> bool:
        client = scope.get("client")
        if client is not None and is_loopback(str(client[0])):
            return True
        if self._token_file is None:
            return False
        try:
            token = self._token_file.read_bytes().strip()
        except OSError:
            return False
        shown = dict(scope["headers"]).get(b"authorization", b"")
        return bool(token) and compare_digest(shown, b"Bearer " + token)
