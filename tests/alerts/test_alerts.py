"""The alert rules of the charts, evaluated by Prometheus' own promtool: `nox -s alerts`."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from capelin_embedded.binaries import Binaries
from capelin_release.alerts import (
    CONTROL_PLANE_ALERTS,
    EXTENSION_ALERTS,
    MANAGER_ALERTS,
    Alert,
)
from capelin_release.components import render_chart
from capelin_release.our_charts import our_charts
from capelin_release.tools import HELM

from .promtool import PROMTOOL

pytestmark = [pytest.mark.needs_programs(HELM, PROMTOOL), pytest.mark.timeout(300)]

CHARTS = our_charts("0.1.0")
ALERTS = {
    "capelin-control-plane": (*MANAGER_ALERTS, *CONTROL_PLANE_ALERTS),
    "capelin-machine-pool": MANAGER_ALERTS,
    "capelin-lifecycle": EXTENSION_ALERTS,
}
MINUTES = 60

UP = "up{JOB}"
ERRORS = 'controller_runtime_reconcile_errors_total{JOB,controller="pool"}'
LONGEST = 'workqueue_longest_running_processor_seconds{JOB,controller="pool"}'
DEPTH = 'workqueue_depth{JOB,controller="pool"}'
LEADER = 'leader_election_master_status{JOB,name="lease",pod="a"}'
CODES = {
    code: f'rest_client_requests_total{{JOB,host="api",method="GET",code="{code}"}}'
    for code in ("200", "503", "<error>")
}
OUTCOMES = {
    outcome: f'capelin_runtime_requests_total{{JOB,handler="gate",hook="H",outcome="{outcome}"}}'
    for outcome in ("success", "retry", "failure", "timeout")
}
SECONDS = {
    bound: f'capelin_runtime_request_duration_seconds_bucket{{JOB,hook="H",le="{bound}"}}'
    for bound in ("0.1", "5", "10", "+Inf")
}
BACKED_UP = 'cluster_namespace="default",control_plane="one"'
LAST_BACKUP = f"capelin_backup_last_success_timestamp_seconds{{JOB,{BACKED_UP}}}"
BACKUP_INTERVAL = f"capelin_backup_interval_seconds{{JOB,{BACKED_UP}}}"
Series = Mapping[str, str]

HEALTHY_MANAGER = {
    UP: "1",
    ERRORS: "3",
    LONGEST: "10",
    DEPTH: "5",
    LEADER: "1",
    LEADER.replace('"a"', '"b"'): "0",
    CODES["200"]: "0+600",
    CODES["503"]: "0+1",
    LAST_BACKUP: "0",
    BACKUP_INTERVAL: "3600",
}
HEALTHY_EXTENSION = {
    UP: "1",
    OUTCOMES["success"]: "0+60",
    OUTCOMES["retry"]: "0+60",
    OUTCOMES["failure"]: "0",
    **dict.fromkeys(SECONDS.values(), "0+60"),
}
CONTROLLER = {"controller": "pool"}
CALL = {"handler": "gate", "hook": "H"}
FAULTS: list[tuple[str, Series, Mapping[str, str]]] = [
    ("CapelinManagerDown", {UP: "0"}, {}),
    ("CapelinManagerDown", {UP: "_"}, {}),
    ("CapelinManagerWithoutLeader", {LEADER: "0"}, {}),
    ("CapelinReconcilesFail", {ERRORS: "0+1"}, CONTROLLER),
    ("CapelinReconcileHangs", {LONGEST: "400"}, CONTROLLER),
    ("CapelinQueueGrows", {DEPTH: "150"}, CONTROLLER),
    ("CapelinRequestsFail", {CODES["503"]: "0+30"}, {"host": "api"}),
    ("CapelinRequestsFail", {CODES["<error>"]: "0+30"}, {"host": "api"}),
    (
        "CapelinBackupOld",
        # Time begins at 0 in these tests.
        {BACKUP_INTERVAL: "600"},
        {"cluster_namespace": "default", "control_plane": "one"},
    ),
    ("CapelinExtensionDown", {UP: "0"}, {}),
    ("CapelinExtensionDown", {UP: "_"}, {}),
    ("CapelinHooksFail", {OUTCOMES["failure"]: "0+1"}, CALL),
    ("CapelinHooksFail", {OUTCOMES["timeout"]: "0+1"}, CALL),
    ("CapelinHooksSlow", {SECONDS["0.1"]: "0", SECONDS["5"]: "0"}, {"hook": "H"}),
]
"""An alert, the series of a fault, and the labels that the alert has then."""


async def promtool(*arguments: str) -> None:
    """Run promtool, which must succeed."""
    process = await asyncio.create_subprocess_exec(
        await Binaries().path(PROMTOOL),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()


async def rules_of(chart: str, folder: Path) -> Path:
    """The file with a chart's rules, as Helm renders them."""
    values = {"metrics": {"prometheusRule": {"enabled": True, "labels": {"release": "a"}}}}
    objects = await render_chart(CHARTS[chart], "capelin", "capelin-system", Binaries(), values)
    (rule,) = (obj for obj in objects if obj["kind"] == "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "a"
    file = folder / "rules.yaml"
    file.write_text(json.dumps(rule["spec"]))
    return file


async def evaluate(
    chart: str, series: Series, firing: Mapping[str, Mapping[str, str]], folder: Path
) -> None:
    """Check that exactly these alerts of a chart fire after an hour, and none too early."""
    scraped = {"namespace": "capelin-system", "service": f"{chart}-metrics"}
    job = ",".join(f'{name}="{value}"' for name, value in scraped.items())
    checks: list[dict[str, Any]] = []
    for alert in ALERTS[chart]:
        fired = [_fired(alert, {**scraped, **firing[alert.name]})] if alert.name in firing else []
        checks += [
            {"alertname": alert.name, "eval_time": f"{minute}m", "exp_alerts": expected}
            for minute, expected in ((alert.minutes - 1, []), (MINUTES - 1, fired))
        ]
    inputs = [
        {"series": name.replace("JOB", job), "values": f"{value}x{MINUTES}"}
        for name, value in series.items()
    ]
    case = {"interval": "1m", "input_series": inputs, "alert_rule_test": checks}
    rules = await rules_of(chart, folder)
    file = folder / "test.yaml"
    file.write_text(json.dumps({"rule_files": [str(rules)], "tests": [case]}))
    await promtool("check", "rules", str(rules))
    await promtool("test", "rules", str(file))


def _fired(alert: Alert, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "exp_labels": {**labels, **alert.rule["labels"]},
        "exp_annotations": alert.rule["annotations"],
    }


def healthy(chart: str) -> dict[str, str]:
    return HEALTHY_EXTENSION if ALERTS[chart] is EXTENSION_ALERTS else HEALTHY_MANAGER


@pytest.mark.parametrize("chart", ALERTS)
async def test_nothing_fires_while_all_is_well(chart: str, tmp_path: Path) -> None:
    await evaluate(chart, healthy(chart), {}, tmp_path)


@pytest.mark.parametrize(
    ("alert", "series", "labels"),
    FAULTS,
    ids=[f"{alert}-{'-'.join(series.values())}" for alert, series, _ in FAULTS],
)
async def test_an_alert_fires(
    alert: str, series: Series, labels: Mapping[str, str], tmp_path: Path
) -> None:
    chart = next(name for name, alerts in ALERTS.items() if alert in {a.name for a in alerts})
    await evaluate(chart, healthy(chart) | dict(series), {alert: labels}, tmp_path)


def test_each_alert_has_a_fault() -> None:
    names = {alert.name for alerts in ALERTS.values() for alert in alerts}
    assert {alert for alert, _, _ in FAULTS} == names
