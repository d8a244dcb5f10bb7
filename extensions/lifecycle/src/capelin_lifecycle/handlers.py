"""The names of the handlers, and which of them policies need."""

from collections.abc import Iterable
from typing import Final

from capelin_lifecycle.api import LIFECYCLE_HOOKS
from capelin_lifecycle.policies.selection import KnownPolicy

TOPOLOGY_HANDLERS: Final = {
    "GeneratePatches": "generate-patches-v1",
    "DiscoverVariables": "discover-variables-v1",
    "ValidateTopology": "validate-topology-v1",
    "GenerateUpgradePlan": "generate-upgrade-plan-v1",
}
"""Handlers that ClusterClasses name; called for no other Cluster, and so always reported.

A handler's name has a version: another way to compute patches gets another handler, since it would
roll out machines.
"""


def handler_name(hook: str, *, blocks: bool) -> str:
    """The name of a hook's gate or notice: `before-cluster-upgrade-gate`."""
    step = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in hook)
    return f"{step.removeprefix('-')}-{'gate' if blocks else 'notice'}"


def needed_handlers(policies: Iterable[KnownPolicy]) -> frozenset[str]:
    """The handlers that discovery is to report for these policies."""
    names = {
        handler_name(policy.spec.hook, blocks=policy.blocks)
        for policy in policies
        if policy.spec.hook in LIFECYCLE_HOOKS and not policy.spec.suspend
    }
    return frozenset({*names, *TOPOLOGY_HANDLERS.values()})


EVERY_GATE: Final = frozenset(
    {*(handler_name(hook, blocks=True) for hook in LIFECYCLE_HOOKS), *TOPOLOGY_HANDLERS.values()}
)
"""What discovery reports while nobody knows which policies there are."""
