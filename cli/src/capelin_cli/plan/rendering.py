"""A plan as text for people, and as Markdown for pull requests. Pure."""

import json
from collections.abc import Iterator
from typing import Any, Final

from capelin_cli.plan.model import ClusterPlan, HookCall, MachineChanges, ObjectChange, Plan
from capelin_cli.terminal.text import printable

_MARKS: Final = {"Created": "+", "Changed": "~", "Rotated": "±", "Deleted": "-"}
_SHOWN: Final = 60
_SPECIAL: Final = str.maketrans({"|": "\\|", "`": "'", "<": "&lt;", "\n": " "})


def text_lines(plan: Plan) -> Iterator[str]:
    """The lines for a terminal."""
    for cluster in plan.clusters:
        yield from _cluster_lines(cluster)
        yield ""
    yield _summary(plan)
    for note in plan.notes:
        yield f"Note: {printable(note)}"


def _cluster_lines(plan: ClusterPlan) -> Iterator[str]:
    yield f"{plan.cluster} in namespace {plan.cluster.namespace}"
    if not plan.has_effect:
        yield "  no effect"
        return
    if len(plan.versions) > 1:
        yield f"  versions: {' → '.join(plan.versions)}"
    for change in plan.objects:
        yield f"  {_MARKS[change.action]} {object_text(change)}"
        for field in change.fields:
            yield f"      {field.path}: {_value(field.before)} → {_value(field.after)}"
    yield from _section("machines", [machines_text(each) for each in plan.machines])
    yield from _section("hooks", [hook_text(each) for each in plan.hooks])
    yield from _section(
        "drains that wait",
        [f"PodDisruptionBudget {each.namespace}/{each.name}" for each in plan.budgets],
    )
    yield from _section("unknown", plan.unknown)


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"  {title}:"
        yield from (f"    {printable(line)}" for line in lines)


def object_text(change: ObjectChange) -> str:
    """An object and its effect, in one line."""
    return printable(f"{change.role} ({change.kind}): {change.action.lower()}")


def machines_text(machines: MachineChanges) -> str:
    """The effect on a set of machines, in one line."""
    if machines.unknown:
        return f"{machines.owner}: unknown, {machines.before} machines"
    words = (
        (machines.kept, "kept"),
        (machines.updated, "updated in place"),
        (machines.replaced, "replaced"),
        (machines.created, "created"),
        (machines.deleted, "deleted"),
    )
    parts = [f"{number} {word}" for number, word in words if number] or ["0 machines"]
    text = f"{machines.owner}: {', '.join(parts)}"
    if machines.order == "OnDelete":
        return f"{text} (outdated machines are replaced when you delete them)"
    if machines.replaced:
        order = "new machines first" if machines.order == "CreateFirst" else "old machines first"
        return (
            f"{text} ({order}, at most {machines.max_surge} more and "
            f"{machines.max_unavailable} fewer)"
        )
    return text


def hook_text(call: HookCall) -> str:
    """A call of a hook, in one line."""
    versions = " → ".join(filter(None, (call.from_version, call.to_version)))
    policies = f", policies: {', '.join(call.policies)}" if call.policies else ""
    return f"{call.hook}{f' ({versions})' if versions else ''}: {call.handler}{policies}"


def _summary(plan: Plan) -> str:
    """The numbers of machines of all Clusters."""
    names = ("kept", "updated", "replaced", "created", "deleted")
    machines = [each for cluster in plan.clusters for each in cluster.machines]
    numbers = [f"{sum(getattr(each, name) for each in machines)} {name}" for name in names]
    unknown = sum(bool(cluster.unknown) for cluster in plan.clusters)
    text = f"Machines of {_clusters(len(plan.clusters))}: {', '.join(numbers)}."
    return f"{text} {_clusters(unknown)} with unknown effects." if unknown else text


def _clusters(number: int) -> str:
    return f"{number} cluster" if number == 1 else f"{number} clusters"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value)
    return printable(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def markdown_lines(plan: Plan) -> Iterator[str]:
    """The lines for a comment on a pull request."""
    yield "### Effect on clusters"
    yield ""
    yield _summary(plan)
    for cluster in plan.clusters:
        yield ""
        yield f"#### `{cluster.cluster.namespace}/{cluster.cluster.name}`"
        yield ""
        if cluster.has_effect:
            yield from _markdown_of_cluster(cluster)
        else:
            yield "No effect."
    for note in plan.notes:
        yield ""
        yield _cell(note)


def _markdown_of_cluster(plan: ClusterPlan) -> Iterator[str]:
    if len(plan.versions) > 1:
        yield f"Versions: {' → '.join(plan.versions)}"
        yield ""
    if plan.machines:
        yield "| machines of | kept | updated | replaced | created | deleted |"
        yield "|---|---|---|---|---|---|"
        for each in plan.machines:
            numbers = (each.kept, each.updated, each.replaced, each.created, each.deleted)
            cells = ["unknown"] * 5 if each.unknown else [str(number) for number in numbers]
            yield f"| {_cell(each.owner)} | {' | '.join(cells)} |"
        yield ""
    for change in plan.objects:
        yield f"- {_cell(object_text(change))}"
        for field in change.fields:
            before, after = _cell(_value(field.before)), _cell(_value(field.after))
            yield f"  - `{_cell(field.path)}`: `{before}` → `{after}`"
    for title, lines in (
        ("Hooks", [hook_text(each) for each in plan.hooks]),
        ("Drains that wait", [f"{each.namespace}/{each.name}" for each in plan.budgets]),
        ("Unknown", plan.unknown),
    ):
        if lines:
            yield ""
            yield f"**{title}**"
            yield ""
            yield from (f"- {_cell(line)}" for line in lines)


def _cell(text: str) -> str:
    """Text without characters that Markdown interprets as structure."""
    return printable(text).translate(_SPECIAL)
