"""Waits for a person, a maintenance window, or both."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from capelin_lifecycle.actions.action import Lasting, Outcome, Run, done, failed, waiting
from capelin_lifecycle.actions.schedule import next_opening, window_problems
from capelin_lifecycle.api import Approval
from capelin_lifecycle.policies.occurrence import Occurrence
from capelin_lifecycle.policies.selection import KnownPolicy

ANNOTATION_PREFIX = "approval.runtime.capelin.cluster.x-k8s.io/"
_LONGEST_NAME = 63
_CODE_LENGTH: Final = 8
_CODE: Final = re.compile(rf"[0-9a-f]{{{_CODE_LENGTH}}}", re.ASCII)


def approval_annotation(policy: str) -> str:
    """The annotation by which a policy's approvers approve."""
    return f"{ANNOTATION_PREFIX}{policy}"


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What is to be approved: one occurrence of a hook for one Cluster, by one policy."""

    policy: str
    namespace: str
    cluster: str
    code: str
    """Ends each value that approves; empty if no result exists yet, and nobody can approve."""

    @classmethod
    def of(cls, policy: str, occurrence: Occurrence, result_id: str) -> "ApprovalRequest":
        """The request of the result with this id."""
        code = result_id[:_CODE_LENGTH]
        return cls(policy, occurrence.namespace, occurrence.cluster, code)

    def command(self, approvers: Sequence[str]) -> str:
        """The command by which an approver approves."""
        user = approvers[0] if len(approvers) == 1 else "USER"
        value = shlex.quote(f"{self.code}:{user}")
        return (
            f"kubectl annotate cluster {self.cluster} -n {self.namespace} --overwrite"
            f" {approval_annotation(self.policy)}={value}"
        )


def approval_outcome(
    approval: Approval,
    request: ApprovalRequest,
    annotations: Mapping[str, str],
    *,
    since: datetime,
    now: datetime,
) -> Outcome:
    """Whether the approval is there and the window open, or the time for both is over."""
    missing: list[str] = []
    hint = ""
    if approval.approvers:
        value = annotations.get(approval_annotation(request.policy))
        problem = _approval_problem(approval, request, value)
        if problem is not None:
            missing.append(problem)
            if request.code:
                hint = f"; to approve: {request.command(approval.approvers)}"
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
    return waiting(f"waits for {text}{hint}", only_by_cluster=not by_clock)


def _approval_problem(
    approval: Approval, request: ApprovalRequest, value: str | None
) -> str | None:
    """What is missing of an approval; `None` if the annotation's value is one."""
    wanted = f"approval by {' or '.join(approval.approvers)}"
    if value is None:
        return wanted
    code, separator, user = value.partition(":")
    if not separator or not _CODE.fullmatch(code):
        return f"{wanted}, since the annotation's value is not CODE:USER"
    if not request.code or code != request.code:
        return f"{wanted}, since the approval with code {code} was for another occurrence"
    if user not in approval.approvers:
        return f"{wanted}, since {user} may not approve"
    return None


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
        result = run.result
        since = result.spec.called or result.metadata.creation_timestamp or run.now
        request = ApprovalRequest(
            run.policy.name,
            run.cluster.namespace or "",
            run.cluster.name,
            result.id[:_CODE_LENGTH],
        )
        annotations = run.cluster.metadata.annotations
        return approval_outcome(approval, request, annotations, since=since, now=run.now)
