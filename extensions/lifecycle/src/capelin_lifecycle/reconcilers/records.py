"""The records of actions in results, which prevent repeated work. Pure.

A record is not a status: `clusterctl move` and a restore bring it to the other management cluster.
"""

import uuid
from datetime import datetime
from typing import Final

from capelin.api import ObjectMeta, OwnerReference
from capelin.api.capi import Cluster
from capelin.contract import CLUSTER_NAME_LABEL, label_value

from capelin_lifecycle.actions import RUNNERS
from capelin_lifecycle.actions.action import POLICY_LABEL
from capelin_lifecycle.api.names import GROUP, UPGRADE_HOOKS
from capelin_lifecycle.api.results import (
    ClusterReference,
    LifecycleResult,
    PolicyReference,
    ResultRecord,
    ResultSpec,
)
from capelin_lifecycle.policies.clusters import Occurrence
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.verdict import Verdict

RESULT_FINALIZER: Final = f"{GROUP}/result"
_WORK: Final = frozenset(name for name, runner in RUNNERS.items() if not runner.keeps_up)
"""Actions that are not repeated when their policy is created again.

Approvals, quotas and rules are decided again, and manifests are applied again.
"""
_LONGEST: Final = 1024


def new_result(
    policy: KnownPolicy, name: str, occurrence: Occurrence, now: datetime, done: str | None = None
) -> LifecycleResult:
    """The result of a policy for an occurrence, which starts its action.

    `done` is the message if the hook has found that the action is done.
    """
    result = LifecycleResult(
        metadata=ObjectMeta(
            name=name,
            namespace=occurrence.namespace,
            labels={
                CLUSTER_NAME_LABEL: label_value(occurrence.cluster),
                POLICY_LABEL: policy.key.label,
            },
            owner_references=[owner_reference(occurrence.cluster, occurrence.uid)],
        ),
        spec=ResultSpec(
            id=uuid.uuid4().hex,
            called=now,
            policy=PolicyReference(kind=policy.kind, namespace=policy.namespace, name=policy.name),
            cluster=ClusterReference(name=occurrence.cluster),
            hook=occurrence.hook,
            from_version=occurrence.from_version,
            to_version=occurrence.to_version,
            target_version=occurrence.target_version if occurrence.hook in UPGRADE_HOOKS else None,
            # The approver sees this topology, and approves no other one.
            topology=occurrence.topology or None if policy.spec.action.approval else None,
            action=policy.spec.action.name,
            order=policy.spec.order,
        ),
    )
    if done is not None:
        result.record = ResultRecord(policy=policy.digest, phase="Done", finished=now, message=done)
    return result


def owner_reference(cluster: str, uid: str) -> OwnerReference:
    """The reference by which a Cluster owns its results: they are moved and deleted with it."""
    return OwnerReference(
        api_version=Cluster.resource.api_version,
        kind=Cluster.resource.kind,
        name=cluster,
        uid=uid,
    )


def is_over(result: LifecycleResult) -> bool:
    """Whether its action has ended."""
    return result.record is not None and result.record.phase is not None


def is_record(result: LifecycleResult) -> bool:
    """Whether it stays when its policy is deleted, since its action must not be repeated."""
    return result.spec.action in _WORK and has_started(result)


def stays(result: LifecycleResult, policy: KnownPolicy) -> bool:
    """Whether its action has ended, and the policy does not ask for another attempt."""
    record = result.record
    if record is None or record.phase is None:
        return False
    if record.policy == policy.digest:
        return True
    if record.phase == "Failed":
        return False
    return not keeps_up(result) or (policy.spec.suspend and has_action_of(result, policy))


def keeps_up(result: LifecycleResult) -> bool:
    """Whether the objects of its action follow changes of the policy."""
    runner = RUNNERS.get(result.spec.action)
    return runner is not None and runner.keeps_up


def has_action_of(result: LifecycleResult, policy: KnownPolicy) -> bool:
    """Whether the policy still has the action of the result. Its settings may have changed."""
    return result.spec.action == policy.spec.action.name


def is_decided(result: LifecycleResult) -> bool:
    """Whether its verdict follows from facts, and can change with them."""
    return result.spec.action not in RUNNERS


def has_started(result: LifecycleResult) -> bool:
    """Whether its action has created something, or has ended."""
    record = result.record
    return record is not None and (record.started is not None or record.phase is not None)


def next_attempt(record: ResultRecord, policy: KnownPolicy) -> ResultRecord:
    """The record of an action that starts again, since its policy has changed."""
    attempt = record.attempt + (record.phase == "Failed")
    return ResultRecord(policy=policy.digest, attempt=attempt, created=record.created)


def after_pause(result: LifecycleResult, now: datetime) -> ResultRecord | None:
    """The record of an action that continues after a pause, which does not count as its time."""
    record, status = result.record, result.status
    if record is None or record.started is None or status is None or status.phase != "Paused":
        return None
    return record.model_copy(update={"started": record.started + (now - status.since)})


def record_after(
    before: ResultRecord | None, policy: KnownPolicy, outcome: Verdict, now: datetime
) -> ResultRecord | None:
    """The record after this outcome of an action, if there is anything to record."""
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
    """The new record of a Job that ran when its policy was deleted. None for other results."""
    record = result.record
    if record is None or record.phase is not None or result.spec.action != "job":
        return None
    name = result.spec.policy.name
    message = f"policy {name} was deleted while its Job ran. Delete this result to run it again"
    return record.model_copy(update={"phase": "Failed", "finished": now, "message": message})
