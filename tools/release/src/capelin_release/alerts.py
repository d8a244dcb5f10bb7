"""Alert rules of managers and extensions, as charts contain them."""

from dataclasses import dataclass
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule of Prometheus, and what the person on call does first."""

    name: str
    expression: str
    """In PromQL. The chart replaces `JOB` with the labels of its release's series."""
    minutes: int
    """How long the expression must hold."""
    severity: Literal["critical", "warning"]
    summary: str
    action: str

    @property
    def rule(self) -> dict[str, Any]:
        """The rule in Prometheus' format."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": f"{self.minutes}m",
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.action},
        }


_DOWN: Final = "sum by (namespace, service) (up{JOB}) == 0 or absent(up{JOB})"

MANAGER_ALERTS: Final = (
    Alert(
        "CapelinManagerDown",
        _DOWN,
        5,
        "critical",
        "Prometheus cannot scrape any pod of the provider.",
        "Read the pods' events and logs. Control planes keep serving, without repairs.",
    ),
    Alert(
        "CapelinManagerWithoutLeader",
        "sum by (namespace, service) (leader_election_master_status{JOB}) < 1",
        5,
        "critical",
        "No pod of the provider holds its Lease.",
        "Check that the provider can update the Lease, and that the API server responds.",
    ),
    Alert(
        "CapelinReconcilesFail",
        "sum by (namespace, service, controller) "
        "(rate(controller_runtime_reconcile_errors_total{JOB}[10m])) > 0",
        30,
        "warning",
        "Reconciles of a controller fail again and again.",
        "Search the log for the exception, and look for objects whose condition has its message.",
    ),
    Alert(
        "CapelinReconcileHangs",
        "max by (namespace, service, controller) "
        "(workqueue_longest_running_processor_seconds{JOB}) > 300",
        1,
        "warning",
        "A reconcile has been running for more than five minutes.",
        "Find its object in the log. If the process does not recover, delete the leader's pod.",
    ),
    Alert(
        "CapelinQueueGrows",
        "max by (namespace, service, controller) (workqueue_depth{JOB}) > 100",
        15,
        "warning",
        "More than 100 objects wait for a reconcile.",
        "Check the CPU limit of the pod and the API server's latency, then raise `concurrency`.",
    ),
    Alert(
        "CapelinRequestsFail",
        "sum by (namespace, service, host) "
        '(rate(rest_client_requests_total{JOB,code=~"5..|<error>"}[10m])) > 0.1',
        10,
        "warning",
        "An API server does not answer the provider, or answers with server errors.",
        "Check the API server in the label `host`.",
    ),
)
"""Alerts of providers, and of everything else with a manager."""

_CONTROL_PLANE: Final = "max by (namespace, service, cluster_namespace, control_plane) "
CONTROL_PLANE_ALERTS: Final = (
    Alert(
        "CapelinBackupOld",
        f"time() - {_CONTROL_PLANE}(capelin_backup_last_success_timestamp_seconds{{JOB}}) > 2 * "
        f"{_CONTROL_PLANE}(capelin_backup_interval_seconds{{JOB}})",
        15,
        "warning",
        "The last good backup of a control plane is older than two intervals of its schedule.",
        "Read the condition `BackupHealthy` of the CapelinControlPlane.",
    ),
)
"""More alerts of the control plane provider."""

EXTENSION_ALERTS: Final = (
    Alert(
        "CapelinExtensionDown",
        _DOWN,
        5,
        "critical",
        "Prometheus cannot scrape any pod of the extension.",
        "Read the pods' events and logs. Cluster API waits for each registered extension.",
    ),
    Alert(
        "CapelinHooksFail",
        "sum by (namespace, service, handler, hook) "
        '(rate(capelin_runtime_requests_total{JOB,outcome=~"failure|timeout"}[10m])) > 0',
        10,
        "critical",
        "Calls of a hook fail or exceed their time, so Clusters wait.",
        "Read the condition `TopologyReconciled` of the Clusters, and the extension's log.",
    ),
    Alert(
        "CapelinHooksSlow",
        "histogram_quantile(0.99, sum by (namespace, service, hook, le) "
        "(rate(capelin_runtime_request_duration_seconds_bucket{JOB}[10m]))) > 5",
        10,
        "warning",
        "One of 100 calls of a hook takes more than five seconds.",
        "Check the CPU limit of the pods, and the servers that the extension calls.",
    ),
)
"""Alerts of Runtime Extensions."""
