"""The effect on the machines of MachinePools: their provider decides about it. Pure.

The rules of Capelin's provider are known. For others, only a change of the number is.
"""

from typing import Any, Final

from capelin.api import Unstructured
from capelin.api.capi import Cluster, MachinePool
from capelin_machine_pool.api import CapelinMachinePool
from capelin_machine_pool.desired import DesiredPool, desired_pool
from pydantic import ValidationError

from capelin_cli.explain.facts import at
from capelin_cli.plan.differences import differences
from capelin_cli.plan.model import MachineChanges
from capelin_cli.plan.snapshot import Roles

_TEMPLATE: Final = "spec.template.spec."
_DELETION: Final = "spec.template.spec.deletion."


def pool_changes(owner: str, old: Roles, new: Roles) -> MachineChanges:
    """The effect on the machines of one MachinePool."""
    before, after = (_replicas(roles.get(owner)) for roles in (old, new))
    remaining = min(before, after)
    changes = MachineChanges(
        owner=owner,
        before=before,
        after=after,
        kept=remaining,
        created=max(0, after - before),
        deleted=max(0, before - after),
    )
    paths = _changed_paths(owner, old, new)
    if not paths or not remaining:
        return changes
    desired = tuple(_desired(owner, roles) for roles in (old, new))
    if desired[0] is None or desired[1] is None:
        kind = str(at(_part(new, "infrastructure", owner), "kind") or "the provider")
        reason = f"{kind} decides which machines it replaces after a change of {', '.join(paths)}"
        return changes.model_copy(update={"kept": before, "unknown": reason})
    return _of_capelin(changes, desired[0], desired[1], paths)


def _of_capelin(
    changes: MachineChanges, before: DesiredPool, after: DesiredPool, paths: list[str]
) -> MachineChanges:
    if before.revision == after.revision:
        return changes
    version = before.machine_pool.spec.template.spec.version
    of_version = after.revision_of_version
    if of_version is not None and version and of_version(version) == before.revision:
        counts: dict[str, Any] = {"kept": 0, "updated": changes.kept, "fields": paths}
        return changes.model_copy(update=counts)
    limits = after.limits
    return changes.model_copy(
        update={
            "kept": 0,
            "replaced": changes.kept,
            "max_surge": limits.surge,
            "max_unavailable": limits.unavailable,
            "order": "CreateFirst" if limits.surge else "DeleteFirst",
        }
    )


def _replicas(pool: Unstructured | None) -> int:
    if pool is None or at(pool, "metadata", "deletionTimestamp"):
        return 0
    replicas = at(pool, "spec", "replicas")
    return replicas if isinstance(replicas, int) else 1


def _part(roles: Roles, part: str, owner: str) -> Unstructured | None:
    return roles.get(f"{part} of {owner}")


def _changed_paths(owner: str, old: Roles, new: Roles) -> list[str]:
    """The changed fields that may concern existing machines."""
    found: list[str] = []
    pairs = [(old.get(owner), new.get(owner), "")]
    pairs += [
        (_part(old, part, owner), _part(new, part, owner), f"{part}.")
        for part in ("infrastructure", "bootstrap")
    ]
    for before, after, prefix in pairs:
        if before is None or after is None:
            continue
        for change in differences(before, after):
            is_template = change.path.startswith(_TEMPLATE if not prefix else "spec.")
            if is_template and not change.path.startswith(_DELETION):
                found.append(prefix + change.path)
    return found


def _desired(owner: str, roles: Roles) -> DesiredPool | None:
    """The state that Capelin's provider desires. None for another provider."""
    pool, infrastructure = roles.get(owner), _part(roles, "infrastructure", owner)
    bootstrap, cluster = _part(roles, "bootstrap", owner), roles.get("Cluster")
    if pool is None or infrastructure is None or cluster is None:
        return None
    if infrastructure.get("kind") != CapelinMachinePool.resource.kind:
        return None
    try:
        return desired_pool(
            CapelinMachinePool.read(infrastructure),
            MachinePool.read(pool),
            Cluster.read(cluster),
            (bootstrap or {}).get("spec", {}),
        )
    except ValidationError:
        return None
