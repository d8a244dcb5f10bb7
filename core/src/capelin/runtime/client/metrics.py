"""Metrics of calls, with the names of Cluster API's own."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from capelin.runtime.catalog import HookId

_SECONDS = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5),
    *(2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60),
)


class CallMetrics:
    """Calls by server and hook, in the registry that they are given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["host", "group", "version", "hook"]
        self._requests = Counter(
            "capi_runtime_sdk_requests",
            "Calls by HTTP status, server, hook and status of the response",
            ["code", *labels, "status"],
            registry=registry,
        )
        self._durations = Histogram(
            "capi_runtime_sdk_request_duration_seconds",
            "How long calls took",
            labels,
            buckets=_SECONDS,
            registry=registry,
        )

    def called(self, host: str, hook: HookId, code: str, status: str, seconds: float) -> None:
        """Count a call."""
        where = (host, hook.group, hook.version, hook.name)
        self._requests.labels(code, *where, status).inc()
        self._durations.labels(*where).observe(seconds)
