"""The monitoring page lists exactly the metrics and alerts that exist."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from capelin.controller.diagnostics import Metrics
from capelin.runtime.server.metrics import Metrics as ExtensionMetrics
from capelin_control_plane.operations.backup import BackupMetrics
from capelin_release.alerts import CONTROL_PLANE_ALERTS, EXTENSION_ALERTS, MANAGER_ALERTS, Alert
from prometheus_client.metrics_core import Metric

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "monitor.md"
TEMPLATES = ROOT / "tools" / "release" / "src" / "capelin_release" / "library" / "templates"


def names(metrics: Iterable[Metric]) -> set[str]:
    """The names in a scrape. The family of a counter has no suffix."""
    return {
        f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in metrics
    }


MANAGER = names(Metrics().registry.collect())
EXTENSION = names(ExtensionMetrics([]).collect())
BACKUPS = names(BackupMetrics().collect())


def test_the_page_lists_every_metric() -> None:
    listed = set(
        re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) \|", PAGE.read_text(), re.MULTILINE)
    )
    assert listed == MANAGER | EXTENSION | BACKUPS


def test_the_page_lists_every_alert() -> None:
    rows = [
        f"| `{alert.name}` | {alert.severity}, {alert.minutes} min"
        f" | {alert.summary} | {alert.action} |"
        for alert in (*MANAGER_ALERTS, *CONTROL_PLANE_ALERTS, *EXTENSION_ALERTS)
    ]
    listed = [line for line in PAGE.read_text().splitlines() if line.startswith("| `Capelin")]
    assert listed == rows


@pytest.mark.parametrize(
    ("template", "known"), [("_manager.tpl", MANAGER), ("_extension.tpl", EXTENSION)]
)
def test_dashboards_show_existing_metrics(template: str, known: set[str]) -> None:
    text = (TEMPLATES / template).read_text()
    used = {name.removesuffix("_bucket") for name in re.findall(r"(\w+)\{JOB", text)}
    assert used
    assert used <= known


@pytest.mark.parametrize(
    ("alerts", "known"),
    [
        (MANAGER_ALERTS, MANAGER),
        (CONTROL_PLANE_ALERTS, BACKUPS),
        (EXTENSION_ALERTS, EXTENSION),
    ],
)
def test_alerts_evaluate_existing_metrics(alerts: Iterable[Alert], known: set[str]) -> None:
    for alert in alerts:
        used = {name.removesuffix("_bucket") for name in re.findall(r"(\w+)\{", alert.expression)}
        assert used, alert.name
        assert used <= {"up", *known}, alert.name
