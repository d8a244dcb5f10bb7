"""How far a policy is for one occurrence of a hook."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from capelin_lifecycle.api.names import Phase
from capelin_lifecycle.api.results import CreatedObject

QUICK_SECONDS: Final = 5
"""Delay of the next call if a person or another Cluster may change the verdict any moment."""
SLOW_SECONDS: Final = 15
"""Delay of the next call while work takes minutes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    phase: Phase
    message: str = ""
    retry_seconds: int = SLOW_SECONDS
    created: Sequence[CreatedObject] | None = None
    """All objects that the action has created. Unset means unchanged."""
    only_by_cluster: bool = False
    """Whether only a change of the Cluster can change the verdict."""
    reserve: Sequence[str] | None = None
    """Uids of Clusters. The verdict counts when they are written as the quota's reservations."""


def waiting(
    message: str, seconds: int = QUICK_SECONDS, *, only_by_cluster: bool = False
) -> Verdict:
    """The policy waits for something that is not its own work."""
    return Verdict("Waiting", message, seconds, only_by_cluster=only_by_cluster)


def done(message: str = "") -> Verdict:
    return Verdict("Done", message)


def failed(message: str) -> Verdict:
    return Verdict("Failed", message)
