from datetime import date
from pathlib import Path
from typing import Any

import pytest
from capelin.runtime import Catalog, Deprecation, Hook
from capelin.runtime.extension import Extension, Handler
from capelin.runtime.messages import Request, Response
from capelin.runtime.server.metrics import BUCKETS, OUTCOMES, Metrics, Probes
from capelin.runtime.v1alpha1 import BeforeClusterCreate, GeneratePatches
from prometheus_client.parser import text_string_to_metric_families


class TryRequest(Request):
    """Tries."""


class TryResponse(Response):
    """Tried."""


@Catalog().hook(
    "hooks.example.com/v1beta1",
    summary="Tries",
    tag="Trials",
    deprecated=Deprecation("1.2", date(2026, 1, 2), replaced_by="v1"),
)
class Try(Hook[TryRequest, TryResponse]):
    """A deprecated hook."""


def handlers() -> tuple[Handler, ...]:
    ext = Extension("guard")
    ext.handler(BeforeClusterCreate, name="quota")(lambda _: None)
    ext.handler(GeneratePatches, name="patches")(lambda _: None)
    ext.handler(Try, name="try")(lambda _: None)
    return ext.handlers


QUOTA, PATCHES, TRY = (handler.path for handler in handlers())


def samples(metrics: Metrics, name: str, **labels: str) -> list[float]:
    """Values of a metric with these labels, parsed like in Prometheus."""
    return [
        sample.value
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def test_calls_are_counted_by_handler_hook_version_and_outcome() -> None:
    metrics = Metrics(handlers())
    for outcome in OUTCOMES:
        metrics.count(QUOTA, outcome, 0.1)
    metrics.count(PATCHES, "success", 0.1)
    name = "capelin_runtime_requests_total"
    assert samples(metrics, name, handler="quota") == [1, 1, 1, 1, 1]
    assert samples(metrics, name, outcome="success") == [1, 1, 0]
    labels = {"hook": "GeneratePatches", "version": "v1alpha1", "outcome": "success"}
    assert samples(metrics, name, group="hooks.runtime.cluster.x-k8s.io", **labels) == [1]


@pytest.mark.parametrize("seconds", [0, *BUCKETS, 0.0007, 1000])
def test_a_duration_counts_in_every_bucket_above_it(seconds: float) -> None:
    metrics = Metrics(handlers())
    metrics.count(QUOTA, "success", seconds)
    name = "capelin_runtime_request_duration_seconds"
    expected = [float(seconds <= bound) for bound in (*BUCKETS, float("inf"))]
    assert samples(metrics, f"{name}_bucket", handler="quota") == expected
    assert samples(metrics, f"{name}_count", handler="quota") == [1]
    assert samples(metrics, f"{name}_count", handler="patches") == [0]


def test_calls_of_a_deprecated_version_have_their_own_metric() -> None:
    metrics = Metrics(handlers())
    metrics.count(TRY, "success", 0.1)
    metrics.count(TRY, "failure", 0.1)
    metrics.count(QUOTA, "success", 0.1)
    name = "capelin_runtime_deprecated_requests_total"
    assert samples(metrics, name) == [2]
    assert samples(metrics, name, since="1.2", replaced_by="v1", version="v1beta1") == [2]


def test_large_counts_are_exact() -> None:
    metrics = Metrics(handlers())
    for _ in range(12345):
        metrics.count(QUOTA, "success", 0)
    labels = {"handler": "quota", "outcome": "success"}
    assert samples(metrics, "capelin_runtime_requests_total", **labels) == [12345]


def test_an_extension_without_handlers_has_a_metrics_page() -> None:
    assert samples(Metrics(()), "capelin_runtime_requests_total") == []


@pytest.mark.parametrize(
    ("client", "header", "status"),
    [
        ("127.0.0.1", b"", 200),
        ("::1", b"", 200),
        ("::ffff:127.0.0.1", b"", 200),
        ("10.0.0.7", b"", 401),
        ("10.0.0.7", b"Bearer wrong", 401),
        ("10.0.0.7", b"Bearer right", 200),
        (None, b"", 401),
    ],
)
async def test_remote_callers_need_a_token_for_metrics(
    tmp_path: Path, client: str | None, header: bytes, status: int
) -> None:
    token = tmp_path / "token"
    token.write_text("right\n")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "path": "/metrics",
        "client": None if client is None else (client, 40000),
        "headers": [(b"authorization", header)] if header else [],
    }
    metrics = Metrics(handlers())
    await Probes(metrics, lambda: True, token)(scope, None, send)
    assert sent[0]["status"] == status
    if header != b"Bearer right" and client == "10.0.0.7":
        sent.clear()
        await Probes(metrics, lambda: True)({**scope, "path": "/readyz"}, None, send)
        assert sent[0]["status"] == 200
