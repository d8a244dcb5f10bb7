"""What a hook answers, from the results of its policies."""

from collections.abc import Sequence
from dataclasses import dataclass

from capelin_lifecycle.api import Phase
from capelin_lifecycle.policies.selection import KnownPolicy

INVALID_RETRY_SECONDS = 30
FAILED_RETRY_SECONDS = 30
FIRST_RETRY_SECONDS = 5
_LONGEST = 2048


@dataclass(frozen=True, slots=True)
class ResultView:
    """What a result says."""

    phase: Phase
    message: str
    retry_seconds: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What to tell Cluster API: proceed, or ask again after a while."""

    retry_seconds: int = 0
    message: str = ""
    is_known: bool = True
    """Whether it follows from the policies; else the hook has to be called again."""


def decide(policies: Sequence[KnownPolicy], results: Sequence[ResultView | None]) -> Answer:
    """Proceed when every policy is done; else wait, as short as the most impatient one says.

    The message names every policy that is waited for, in their order, and changes only when one of
    them has something else to say.
    """
    waits: list[tuple[int, str]] = []
    for policy, result in zip(policies, results, strict=True):
        if (wait := _wait(policy, result)) is not None:
            waits.append(wait)
    if not waits:
        return Answer()
    message = "; ".join(text for _, text in waits)
    if len(message) > _LONGEST:
        message = message[: _LONGEST - 1] + "…"
    return Answer(min(seconds for seconds, _ in waits), message)


def _wait(policy: KnownPolicy, result: ResultView | None) -> tuple[int, str] | None:
    if policy.problem is not None:
        wait = INVALID_RETRY_SECONDS, f"policy {policy.name} cannot be used: {policy.problem}"
        return wait if policy.blocks else None
    if result is None:
        return FIRST_RETRY_SECONDS, f"policy {policy.name} has started"
    if result.phase == "Failed":
        wait = FAILED_RETRY_SECONDS, f"policy {policy.name} has failed: {result.message}"
        return wait if policy.blocks else None
    if result.phase == "Done":
        return None
    return result.retry_seconds, f"policy {policy.name}: {result.message}"
