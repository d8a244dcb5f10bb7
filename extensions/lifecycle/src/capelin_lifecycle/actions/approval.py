"""Waits for a person, a maintenance window, or both."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from capelin_lifecycle.api.actions import Approval, Window
from capelin_lifecycle.policies.clusters import Occurrence
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.verdict import Verdict, done, failed, waiting

ANNOTATION_PREFIX = "approval.runtime.capelin.cluster.x-k8s.io/"
_LONGEST_NAME = 63
_CODE_LENGTH: Final = 8
_FURTHEST: Final = timedelta(days=366)
_MOST_OPENINGS: Final = 1000
_CODE: Final = re.compile(rf"[0-9a-f]{{{_CODE_LENGTH}}}", re.ASCII)


def approval_annotation(policy: str) -> str:
    """The annotation by which a policy's approvers approve."""
    return f"{ANNOTATION_PREFIX}{policy}"


def approval_command(policy: str, hook: Occurrence, code: str, approvers: Sequence[str]) -> str:
    """The command by which an approver approves an occurrence of a hook."""
    user = approvers[0] if len(approvers) == 1 else "USER"
    value = shlex.quote(f"{code}:{user}")
    return (
        f"kubectl annotate cluster {hook.cluster} -n {hook.namespace} --overwrite"
        f" {approval_annotation(policy)}={value}"
    )


def approval_verdict(
    approval: Approval,
    policy: str,
    hook: Occurrence,
    result_id: str,
    annotations: Mapping[str, str],
    *,
    since: datetime,
    now: datetime,
) -> Verdict:
    """Whether the approval exists and the window is open, or the time for both is over.

    A value that approves begins with the code of the result. Without a code, no value approves.
    """
    missing: list[str] = []
    hint = ""
    if approval.approvers:
        code = result_id[:_CODE_LENGTH]
        value = annotations.get(approval_annotation(policy))
        problem = _approval_problem(approval, code, value)
        if problem is not None:
            missing.append(problem)
            if code:
                hint = f". To approve: {approval_command(policy, hook, code, approval.approvers)}"
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


def _approval_problem(approval: Approval, expected: str, value: str | None) -> str | None:
    """Why the annotation's value is not an approval. `None` if it is one."""
    wanted = f"approval by {' or '.join(approval.approvers)}"
    if value is None:
        return wanted
    code, separator, user = value.partition(":")
    if not separator or not _CODE.fullmatch(code):
        return f"{wanted}, since the annotation's value is not CODE:USER"
    if not expected or code != expected:
        return f"{wanted}, since the approval with code {code} was for another occurrence"
    if user not in approval.approvers:
        return f"{wanted}, since {user} may not approve"
    return None


def approval_problems(policy: KnownPolicy) -> list[str]:
    """A window that cannot be read, or a name that fits no annotation."""
    approval = policy.spec.action.approval
    problems: list[str] = []
    if approval is not None and approval.window is not None:
        problems += [f"window.{text}" for text in window_problems(approval.window)]
    if approval is not None and approval.approvers and len(policy.name) > _LONGEST_NAME:
        problems.append("the policy's name ends an annotation: use at most 63 characters")
    return problems


# Maintenance windows


@dataclass(frozen=True, slots=True)
class Opening:
    """One time that a window is open."""

    start: datetime
    end: datetime

    def is_open(self, now: datetime) -> bool:
        return self.start <= now < self.end


def window_problems(window: Window) -> list[str]:
    try:
        zone = ZoneInfo(window.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # A folder of time zones, such as Europe, is an OSError.
        return [f"timeZone: {window.time_zone!r} is not a time zone: write Europe/Berlin"]
    try:
        next(CronSim(window.schedule, datetime(2026, 1, 1, tzinfo=zone)))
    except CronSimError as error:
        return [f"schedule: {window.schedule!r} is not a cron expression: {error}"]
    except StopIteration:
        return [f"schedule: {window.schedule!r} never occurs"]
    if not timedelta() < window.duration <= timedelta(days=7):
        return ["duration: must be at most 7 days"]
    return []


def next_opening(window: Window, now: datetime) -> Opening | None:
    """The current opening, or else the next one within a year."""
    zone = ZoneInfo(window.time_zone)
    # An open window has opened at most its duration ago.
    starts = CronSim(window.schedule, (now - window.duration).astimezone(zone))
    for _, start in zip(range(_MOST_OPENINGS), starts, strict=False):
        opening = Opening(start, start + window.duration)
        if now < opening.end:
            return opening
        if start > now + _FURTHEST:
            break
    return None
