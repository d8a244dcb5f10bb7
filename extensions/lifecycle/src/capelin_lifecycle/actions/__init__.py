"""The actions of policies, each in its module, behind one protocol."""

from typing import Final

from capelin_lifecycle.actions.action import (
    MANAGER,
    POLICY_LABEL,
    SLOW_SECONDS,
    ActionRunner,
    Cleanup,
    Lasting,
    Outcome,
    Run,
    done,
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

ACTIONS_AT_ONCE: Final = frozenset({"approval", "quota", "validate"})
"""Those that a hook decides itself: nothing has to be started, and nobody is asked."""

__all__ = [
    "ACTIONS_AT_ONCE",
    "ANNOTATION_PREFIX",
    "MANAGER",
    "POLICY_LABEL",
    "RUNNERS",
    "SLOW_SECONDS",
    "ActionRunner",
    "Cleanup",
    "Lasting",
    "Outcome",
    "Run",
    "done",
    "failed",
    "waiting",
]
