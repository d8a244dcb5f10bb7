"""The next action of `capelin upgrade`, decided from the versions that run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from capelin.contract import find_condition
from capelin.errors import InvalidInputError

from capelin_cli.environments.kubernetes_versions import (
    check_upgrade,
    next_version,
    parse_version,
)
from capelin_cli.status.condition_messages import is_upgrading
from capelin_cli.status.readiness import ObservedCluster, not_ready_reason


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """The version to upgrade to, and the next action."""

    version: str
    action: Literal["Send", "Wait", "Nothing"]
    """`Wait` if Cluster API already works on it, `Nothing` if the cluster runs the version."""


def plan_upgrade(
    requested: str | None, desired: str, observed: ObservedCluster, known: Sequence[str]
) -> UpgradePlan:
    """The upgrade of a Cluster to a requested version, or to the next one."""
    in_progress = upgrade_in_progress(desired, observed)
    if requested is not None:
        version = parse_version(requested, known)
    else:
        version = desired if in_progress else next_version(desired, known)
    if version == desired:
        return UpgradePlan(version, "Wait" if in_progress else "Nothing")
    if observed.versions - {desired}:
        raise InvalidInputError(
            f"The cluster is being upgraded to {desired}, and {version} cannot take its place.",
            reason="Cluster API accepts another version when the whole cluster runs this one.",
            hint="Wait for this upgrade with capelin wait, then try again.",
        )
    check_upgrade(desired, version, known)
    return UpgradePlan(version, "Send")


def upgrade_in_progress(desired: str, observed: ObservedCluster) -> bool:
    """Whether a Cluster does not run the desired version everywhere, or its hooks still block."""
    if not observed.versions:
        return not_ready_reason(observed) is not None
    cluster = observed.cluster
    conditions = cluster.status.conditions if cluster is not None else []
    topology = find_condition(conditions, "TopologyReconciled")
    is_unfinished = topology is not None and is_upgrading(topology.message)
    return is_unfinished or observed.versions != {desired}
