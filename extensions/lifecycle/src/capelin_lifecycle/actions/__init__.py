"""The actions of policies, each in its module, behind one protocol."""

from typing import Final

from capelin_lifecycle.actions.action import (
    CLUSTER_LABEL,
    MANAGER,
    POLICY_LABEL,
    SLOW_SECONDS,
    ActionRunner,
    Cleanup,
    Outcome,
    Run,
    failed,
    waiting,
)
from capelin_lifecycle.actions.apply import ApplyRunner
from capelin_lifecycle.actions.approval import ANNOTATION_PREFIX, ApprovalRunner
from capelin_lifecycle.actions.backup import BackupRunner
from capelin_lifecycle.actions.http import HttpRunner
from capelin_lifecycle.actions.job import JobRunner
from capelin_lifecycle.actions.quota import QuotaRunner
from capelin_lifecycle.actions.validate import ValidateRunner

RUNNERS: Final[dict[str, ActionRunner]] = {
    "apply": ApplyRunner(),
    "approval": ApprovalRunner(),
    "backup": BackupRunner(),
    "http": HttpRunner(),
    "job": JobRunner(),
    "quota": QuotaRunner(),
    "validate": ValidateRunner(),
}
"""The actions of the hooks of a Cluster's life, by their names in YAML."""

__all__ = [
    "ANNOTATION_PREFIX",
    "CLUSTER_LABEL",
    "MANAGER",
    "POLICY_LABEL",
    "RUNNERS",
    "SLOW_SECONDS",
    "ActionRunner",
    "Cleanup",
    "Outcome",
    "Run",
    "failed",
    "waiting",
]
