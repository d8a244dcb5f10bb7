"""Compares the objects of a Cluster before and after a change, by role. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from capelin.api import Unstructured

from capelin_cli.explain.facts import at, reference_of, text_at
from capelin_cli.explain.model import Reference
from capelin_cli.plan.differences import differences
from capelin_cli.plan.model import ClusterPlan, MachineChanges, ObjectChange
from capelin_cli.plan.pools import pool_changes
from capelin_cli.plan.snapshot import POOL, Roles, Snapshot, uid_of

CONTROL_PLANE: Final = "control plane"
_DEPLOYMENT: Final = "MachineDeployment "
_PARTS: Final = {"infrastructure", "bootstrap"}


def compare(before: Snapshot, after: Snapshot, cluster: Reference) -> ClusterPlan:
    """The effect on a Cluster, without hooks and budgets."""
    old, new = before.roles(cluster), after.roles(cluster)
    words = _words(old, new)
    machines = compare_machines(before, after, cluster, (old, new))
    return ClusterPlan(
        cluster=cluster,
        versions=_versions(old, new),
        objects=list(_objects(old, new, words)),
        machines=machines,
        unknown=[f"{each.owner}: {each.unknown}" for each in machines if each.unknown],
    )


def _words(old: Roles, new: Roles) -> Mapping[str, Mapping[str, str]]:
    """Roles in place of the names that change, so that references to them compare as equal."""
    before, after = (
        {role: reference_of(obj).name for role, obj in each.items()} for each in (old, new)
    )
    renamed = [role for role in before if role in after and before[role] != after[role]]
    return {
        "before": {before[role]: f"<{role}>" for role in renamed},
        "after": {after[role]: f"<{role}>" for role in renamed},
    }


def _versions(old: Roles, new: Roles) -> list[str]:
    found = (text_at(each.get(CONTROL_PLANE), "spec", "version") for each in (old, new))
    return list(dict.fromkeys(filter(None, found)))


def _objects(
    old: Roles, new: Roles, words: Mapping[str, Mapping[str, str]]
) -> Iterable[ObjectChange]:
    for role in dict.fromkeys([*old, *new]):
        before, after = old.get(role), new.get(role)
        if before is None and after is not None:
            yield ObjectChange(action="Created", kind=_kind(after), role=role)
        elif before is not None and (after is None or text_at(after, *_DELETION)):
            yield ObjectChange(action="Deleted", kind=_kind(before), role=role)
        elif before is not None and after is not None:
            fields = differences(before, after, words)
            is_other = (_kind(before), uid_of(before)) != (_kind(after), uid_of(after))
            if is_other:
                yield ObjectChange(action="Rotated", kind=_kind(after), role=role, fields=fields)
            elif fields:
                yield ObjectChange(action="Changed", kind=_kind(after), role=role, fields=fields)


_DELETION: Final = ("metadata", "deletionTimestamp")


def _kind(obj: Unstructured) -> str:
    return text_at(obj, "kind")


def compare_machines(
    before: Snapshot, after: Snapshot, cluster: Reference, roles: tuple[Roles, Roles]
) -> list[MachineChanges]:
    """The effect on the machines of a Cluster, per set."""
    old, new = before.machines(cluster), after.machines(cluster)
    owners = [role for each in roles for role in each if role.startswith((_DEPLOYMENT, POOL))]
    found: list[MachineChanges] = []
    for owner in dict.fromkeys([*owners, *old, *new]):
        if owner.startswith(POOL):
            found.append(pool_changes(owner, *roles))
            continue
        workers = roles[1].get(owner) or roles[0].get(owner) or {}
        changes = _set_changes(
            owner,
            [_Content(before, each) for each in old.get(owner, ())],
            [_Content(after, each) for each in new.get(owner, ())],
        )
        if owner == CONTROL_PLANE:
            changes = _of_control_plane(changes, *(each.get(owner) for each in roles))
        found.append(_with_rollout(changes, workers))
    return [each for each in found if each.before or each.after]


class _Content:
    """A Machine with the specs of its parts."""

    def __init__(self, snapshot: Snapshot, machine: Unstructured) -> None:
        self.uid = uid_of(machine)
        self.machine = machine
        self.parts = snapshot.machine_parts(machine)

    def changed_paths(self, after: "_Content") -> list[str]:
        """The fields that differ in another moment."""
        paths = [change.path for change in differences(self.machine, after.machine)]
        for part in sorted(_PARTS):
            old, new = {"spec": self.parts[part]}, {"spec": after.parts[part]}
            paths += [f"{part}.{change.path}" for change in differences(old, new)]
        return paths


def _set_changes(
    owner: str, before: Sequence[_Content], after: Sequence[_Content]
) -> MachineChanges:
    successors = {each.uid: each for each in after}
    paths = {
        each.uid: each.changed_paths(successors[each.uid])
        for each in before
        if each.uid in successors
    }
    updated = [found for found in paths.values() if found]
    removed, added = len(before) - len(paths), len(after) - len(paths)
    replaced = min(removed, added)
    return MachineChanges(
        owner=owner,
        before=len(before),
        after=len(after),
        kept=len(paths) - len(updated),
        updated=len(updated),
        replaced=replaced,
        created=added - replaced,
        deleted=removed - replaced,
        fields=sorted(Counter(path for found in updated for path in set(found))),
    )


def _of_control_plane(
    changes: MachineChanges, before: Unstructured | None, after: Unstructured | None
) -> MachineChanges:
    """The provider of the control plane decides about its Machines: nothing stands in for that."""
    if before is None or after is None:
        return changes
    changed = [
        change.path
        for change in differences(before, after)
        if change.path.startswith("spec.") and not change.path.startswith("spec.rollout")
    ]
    if not changed:
        return changes
    number = at(after, "spec", "replicas")
    if changed == ["spec.replicas"] and isinstance(number, int):
        counts = {
            "after": number,
            "kept": min(changes.before, number),
            "created": max(0, number - changes.before),
            "deleted": max(0, changes.before - number),
        }
        return changes.model_copy(update=counts)
    kind = reference_of(after).kind
    reason = f"{kind} decides which machines it replaces after a change of {', '.join(changed)}"
    return changes.model_copy(update={"unknown": reason})


def _with_rollout(changes: MachineChanges, workers: Unstructured) -> MachineChanges:
    """The strategy by which the machines of a MachineDeployment are replaced."""
    strategy = at(workers, "spec", "rollout", "strategy")
    if text_at(strategy, "type") == "OnDelete":
        return changes.model_copy(update={"order": "OnDelete"})
    if not changes.replaced:
        return changes
    surge, unavailable = (
        at(strategy, "rollingUpdate", name) for name in ("maxSurge", "maxUnavailable")
    )
    return rolling(
        changes, 1 if surge is None else surge, 0 if unavailable is None else unavailable
    )


def rolling(changes: MachineChanges, surge: Any, unavailable: Any) -> MachineChanges:
    """The limits of a rolling replacement, as numbers."""
    most = _resolved(surge, changes.after, math.ceil)
    fewest = min(_resolved(unavailable, changes.after, math.floor), changes.after)
    # With neither, no machine could ever be replaced.
    fewest = fewest if most else max(1, fewest)
    return changes.model_copy(
        update={
            "max_surge": most,
            "max_unavailable": fewest,
            "order": "CreateFirst" if most else "DeleteFirst",
        }
    )


def _resolved(value: Any, total: int, rounded: Callable[[float], int]) -> int:
    """A number, or a percentage of the machines."""
    text = str(value)
    if text.endswith("%"):
        return rounded(total * float(text[:-1]) / 100)
    return int(text)
