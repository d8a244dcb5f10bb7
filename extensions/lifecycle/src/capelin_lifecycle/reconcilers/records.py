"""What results record of the work of their actions, so that nothing happens twice. Pure.

A record is not a status: `clusterctl move` and a restore bring it to the other management cluster.
"""

from datetime import datetime
from typing import Final

from capelin_lifecycle.actions import RUNNERS, Outcome
from capelin_lifecycle.api import GROUP, LifecycleResult, ResultRecord
from capelin_lifecycle.policies.selection import KnownPolicy

RESULT_FINALIZER: Final = f"{GROUP}/result"
_WORK: Final = frozenset({"backup", "http", "job"})
"""Actions that are not repeated when their policy is created again.

Approvals, quotas and rules are decided again, and manifests are applied again.
"""
_LONGEST: Final = 1024


def is_over(result: LifecycleResult) -> bool:
    """Whether its action has ended."""
    return result.record is not None and result.record.phase is not None


def is_record(result: LifecycleResult) -> bool:
    """Whether it stays when its policy is deleted, since its action must not be repeated."""
    record = result.record
    if record is None or result.spec.action not in _WORK:
        return False
    return record.started is not None or record.phase is not None


def stays(result: LifecycleResult, policy: KnownPolicy) -> bool:
    """Whether its action has ended, and the policy does not ask for another attempt."""
    record = result.record
    if record is None or record.phase is None:
        return False
    if record.policy == policy.digest:
        return True
    runner = RUNNERS.get(policy.spec.action.name)
    keeps_up = runner is not None and runner.keeps_up
    return record.phase == "Done" and (not keeps_up or policy.spec.suspend)


def next_attempt(record: ResultRecord, policy: KnownPolicy) -> ResultRecord:
    """The record of an action that starts again, since its policy has changed."""
    attempt = record.attempt + (record.phase == "Failed")
    return ResultRecord(policy=policy.digest, attempt=attempt, created=record.created)


def record_after(
    before: ResultRecord | None, policy: KnownPolicy, outcome: Outcome, now: datetime
) -> ResultRecord | None:
    """The record when an action has come this far; nothing if there is nothing to record."""
    is_waiting = outcome.phase not in ("Running", "Done", "Failed")
    if before is None and is_waiting:
        return None
    record = before or ResultRecord(policy=policy.digest)
    changes: dict[str, object] = {}
    if outcome.created is not None:
        changes["created"] = list(outcome.created)
    if record.started is None and outcome.phase == "Running":
        changes["started"] = now
    if outcome.phase in ("Done", "Failed"):
        changes |= {
            "policy": policy.digest,
            "phase": outcome.phase,
            "finished": now,
            "message": outcome.message[:_LONGEST],
        }
    return record.model_copy(update=changes)


def abandoned(result: LifecycleResult, now: datetime) -> ResultRecord | None:
    """The record of a Job that ran when its policy was deleted; nothing if it stays as it is."""
    record = result.record
    if record is None or record.phase is not None or result.spec.action != "job":
        return None
    name = result.spec.policy.name
    message = f"policy {name} was deleted while its Job ran; delete this result to run it again"
    return record.model_copy(update={"phase": "Failed", "finished": now, "message": message})
