"""Metrics of backups: the age of the last good one, and how often one is due."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from capelin.controller import ObjectKey
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_LABELS = ("cluster_namespace", "control_plane")


@dataclass(frozen=True, slots=True)
class BackupAge:
    """The backups of a control plane with a schedule."""

    last: datetime
    """When the last good backup began. Without one, when the control plane was created."""
    interval: timedelta
    """How long its schedule waits between two backups."""


class BackupMetrics(Collector):
    """Reports the last good backup of each control plane with a schedule.

    Prometheus' own label `namespace` is that of the provider.
    """

    def __init__(self) -> None:
        self._ages: dict[ObjectKey, BackupAge] = {}

    def update(self, key: ObjectKey, age: BackupAge | None) -> None:
        """Report the backups of a control plane, or none of it."""
        if age is None:
            self._ages.pop(key, None)
        else:
            self._ages[key] = age

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        last = GaugeMetricFamily(
            "capelin_backup_last_success_timestamp_seconds",
            "When the last good backup of a control plane with a schedule began",
            labels=_LABELS,
        )
        interval = GaugeMetricFamily(
            "capelin_backup_interval_seconds",
            "How long the schedule of a control plane waits between two backups",
            labels=_LABELS,
        )
        for key, age in self._ages.items():
            labels = (key.namespace, key.name)
            last.add_metric(labels, age.last.timestamp())
            interval.add_metric(labels, age.interval.total_seconds())
        return [last, interval]
