"""The monitoring page lists exactly the metrics of managers and extensions."""

import re
from collections.abc import Iterable
from pathlib import Path

from capelin.controller.diagnostics import Metrics
from capelin.runtime.server.metrics import Metrics as ExtensionMetrics
from prometheus_client.metrics_core import Metric

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "monitor.md"


def names(metrics: Iterable[Metric]) -> set[str]:
    """The names in a scrape. The family of a counter has no suffix."""
    return {
        f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in metrics
    }


def test_the_page_lists_every_metric() -> None:
    listed = set(
        re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) \|", PAGE.read_text(), re.MULTILINE)
    )
    assert listed == names(Metrics().registry.collect()) | names(ExtensionMetrics([]).collect())
