"""Which programs of a control plane are killed, and when: planned from a seed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from capelin_control_plane.desired import PROGRAMS, Component

Change = Literal["next version", "another API server", "an API server less", "rollout"]

_LONGEST_SECONDS = 6.0
"""Planned changes take longer than that, so a kill meets them anywhere in their first half."""


@dataclass(frozen=True)
class Kill:
    """One kill, and what happens around it."""

    component: Component | None
    """What loses an instance; nothing but the provider ends if None."""
    instance: int
    """Which of its instances, counted round and round."""
    change: Change | None
    """What is changed on purpose just before."""
    seconds: float
    """How long after that."""
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
    # There is nothing to take away before something was added.
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
