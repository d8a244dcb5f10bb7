"""Plans kills of a control plane's processes from a seed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from capelin_control_plane.desired.control_plane import PROGRAMS, Component

Change = Literal["next version", "another API server", "an API server less", "rollout"]

_LONGEST_SECONDS = 6.0
"""Planned changes take longer, so a kill hits them anywhere in their first half."""


@dataclass(frozen=True)
class Kill:
    """One kill with its planned change and provider restart."""

    component: Component | None
    """The component that loses an instance. If None, only the provider ends."""
    instance: int
    """The index of the instance, modulo their number."""
    change: Change | None
    """The planned change just before."""
    seconds: float
    """The delay after the change."""
    stops_provider: bool
    """Whether the provider stops just before the kill and starts again after it."""


def planned_kills(seed: int, count: int) -> tuple[Kill, ...]:
    """So many kills: of each program and of the provider first, and each change once.

    Raises:
        ValueError: there are fewer kills than changes.
    """
    random = Random(seed)  # noqa: S311 - it has to be repeatable
    targets: list[Component | None] = [*PROGRAMS, None]
    components = _each_first(targets, count, random)
    # A removal is possible only after an addition.
    changes: list[Change | None] = sorted(get_args(Change), key=lambda _: random.random())
    more, fewer = changes.index("another API server"), changes.index("an API server less")
    if fewer < more:
        changes[more], changes[fewer] = changes[fewer], changes[more]
    places = set(random.sample(range(count), len(changes)))
    return tuple(
        Kill(
            component,
            random.randrange(100),
            changes.pop(0) if number in places else None,
            round(random.uniform(0, _LONGEST_SECONDS), 2),
            component is None or random.random() < 0.3,
        )
        for number, component in enumerate(components)
    )


def _each_first(
    targets: Sequence[Component | None], count: int, random: Random
) -> list[Component | None]:
    """Each target once in any order, and then any of them."""
    first = random.sample(targets, len(targets))[:count]
    return [*first, *random.choices(targets, k=count - len(first))]
