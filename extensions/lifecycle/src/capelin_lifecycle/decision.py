"""Decides the progress of a policy, and the answer of a hook from its policies. Pure.

Hooks and reconcilers decide by the same function. It needs more facts for some actions: `Judge`
collects them, and calls it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from capelin.api import format_duration

from capelin_lifecycle.actions.approval import approval_verdict
from capelin_lifecycle.actions.quota import Census, quota_verdict
from capelin_lifecycle.actions.validate import rules_verdict
from capelin_lifecycle.policies.clusters import KnownCluster, Occurrence
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.verdict import SLOW_SECONDS, Verdict, waiting

INVALID_RETRY_SECONDS = 30
FAILED_RETRY_SECONDS = 30
FIRST_RETRY_SECONDS = 5
_LONGEST = 2048


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a decision depends on besides the policy, the Cluster and the hook."""

    called: datetime
    """Time of the hook's first call."""
    result_id: str = ""
    """Id of the result, which approvals name. Empty if no result exists yet."""
    earlier: str | None = None
    """A policy of a smaller order that is not done."""
    values: Sequence[Any] | None = None
    """The values of the policy's rules, once they are evaluated."""
    census: Census | None = None
    """The Clusters that the quota of the policy counts, once they are counted."""


def decide(
    policy: KnownPolicy, cluster: KnownCluster, hook: Occurrence, facts: Facts, now: datetime
) -> Verdict | None:
    """The progress of a policy for a Cluster. `None` if these facts are not enough.

    Then the values of rules or the census of a quota are missing, or the action has to run.
    """
    if (obstacle := _obstacle(policy, facts)) is not None:
        return obstacle
    action = policy.spec.action
    if (approval := action.approval) is not None:
        return approval_verdict(
            approval,
            policy.name,
            hook,
            facts.result_id,
            cluster.annotations,
            since=facts.called,
            now=now,
        )
    if (validate := action.validate_) is not None and facts.values is not None:
        return rules_verdict(validate, facts.values)
    if (quota := action.quota) is not None and facts.census is not None:
        return quota_verdict(quota, cluster.occurrence.uid, facts.census)
    return None


def _obstacle(policy: KnownPolicy, facts: Facts) -> Verdict | None:
    """Why no action can continue."""
    spec = policy.spec
    if spec.suspend:
        return waiting("the policy is suspended", SLOW_SECONDS)
    if policy.problem is not None:
        return waiting(f"the policy cannot be used: {policy.problem}", SLOW_SECONDS)
    if facts.earlier is not None:
        return waiting(f"waits for policy {facts.earlier}")
    return None


def in_time(
    policy: KnownPolicy, outcome: Verdict, started: datetime | None, now: datetime
) -> Verdict:
    """The observed progress of an action that runs, or its failure if its time is over.

    An action that has ended is not late, even if the extension looked at it later.
    """
    timeout = policy.spec.timeout
    is_over = started is not None and now - started > timeout
    if outcome.phase not in ("Waiting", "Running") or not is_over:
        return outcome
    return replace(outcome, phase="Failed", message=f"not done within {format_duration(timeout)}")


def lets_pass(policy: KnownPolicy, verdict: Verdict | None) -> bool:
    """Whether policies of a greater order start."""
    if verdict is None:
        return False
    return verdict.phase == "Done" or (verdict.phase == "Failed" and not policy.blocks)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to Cluster API: proceed, or call again after some seconds."""

    retry_seconds: int = 0
    message: str = ""
    is_known: bool = True
    """Whether it follows from the policies. Otherwise Cluster API has to call again."""


def answer(policies: Sequence[KnownPolicy], verdicts: Sequence[Verdict | None]) -> Answer:
    """Proceed when every policy is done. Otherwise wait for the shortest time of any policy.

    The message names every policy that blocks, in their order. It changes only when the message of
    a policy does.
    """
    waits: list[tuple[int, str]] = []
    for policy, verdict in zip(policies, verdicts, strict=True):
        if (wait := _wait(policy, verdict)) is not None:
            waits.append(wait)
    if not waits:
        return Answer()
    message = "; ".join(text for _, text in waits)
    if len(message) > _LONGEST:
        message = message[: _LONGEST - 1] + "…"
    return Answer(min(seconds for seconds, _ in waits), message)


def _wait(policy: KnownPolicy, verdict: Verdict | None) -> tuple[int, str] | None:
    if policy.problem is not None:
        wait = INVALID_RETRY_SECONDS, f"policy {policy.name} cannot be used: {policy.problem}"
        return wait if policy.blocks else None
    if verdict is None:
        return FIRST_RETRY_SECONDS, f"policy {policy.name} has started"
    if verdict.phase == "Failed":
        wait = FAILED_RETRY_SECONDS, f"policy {policy.name} has failed: {verdict.message}"
        return wait if policy.blocks else None
    if verdict.phase == "Done":
        return None
    return verdict.retry_seconds, f"policy {policy.name}: {verdict.message}"
