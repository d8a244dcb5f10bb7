"""Waits for a person, a maintenance window, or both."""

from collections.abc import Mapping
from datetime import datetime

from capelin_lifecycle.actions.action import Lasting, Outcome, Run, done, failed, waiting
from capelin_lifecycle.api import Approval
from capelin_lifecycle.schedule import next_opening, window_problems
from capelin_lifecycle.selection import KnownPolicy

ANNOTATION_PREFIX = "approval.runtime.capelin.cluster.x-k8s.io/"
_LONGEST_NAME = 63


def approval_annotation(policy: str) -> str:
    """The annotation by which a policy's approvers approve."""
    return f"{ANNOTATION_PREFIX}{policy}"


def approval_outcome(
    approval: Approval,
    policy: str,
    annotations: Mapping[str, str],
    *,
    since: datetime,
    now: datetime,
) -> Outcome:
    """Whether the approval is there and the window open, or the time for both is over."""
    missing: list[str] = []
    annotation = approval_annotation(policy)
    if approval.approvers:
        approver = annotations.get(annotation)
        names = " or ".join(approval.approvers)
        if approver is None:
            missing.append(f"approval by {names} (annotation {annotation})")
        elif approver not in approval.approvers:
            missing.append(f"approval by {names}, since {approver} may not approve")
    if (window := approval.window) is not None:
        opening = next_opening(window, now)
        if opening is None or not opening.is_open(now):
            missing.append(f"the maintenance window ({window.schedule}, {window.time_zone})")
    if not missing:
        return done("approved" if approval.approvers else "the maintenance window is open")
    text = " and ".join(missing)
    if approval.expiry is not None and now - since >= approval.expiry:
        return failed(f"expired without {text}")
    by_clock = approval.window is not None or approval.expiry is not None
    return waiting(f"waits for {text}", only_by_cluster=not by_clock)


class ApprovalRunner(Lasting):
    """The action `approval`."""

    def problems(self, policy: KnownPolicy) -> list[str]:
        """A window that cannot be read, or a name that fits no annotation."""
        approval = policy.spec.action.approval
        problems: list[str] = []
        if approval is not None and approval.window is not None:
            problems += [f"window.{text}" for text in window_problems(approval.window)]
        if approval is not None and approval.approvers and len(policy.name) > _LONGEST_NAME:
            problems.append("the policy's name ends an annotation: use at most 63 characters")
        return problems

    async def reconcile(self, run: Run) -> Outcome:
        """Look at the Cluster's annotations and the clock."""
        approval = run.policy.spec.action.approval or Approval()
        since = run.result.metadata.creation_timestamp or run.now
        annotations = run.cluster.metadata.annotations
        return approval_outcome(approval, run.policy.name, annotations, since=since, now=run.now)
