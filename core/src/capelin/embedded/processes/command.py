"""What is to run: command lines, their limits, and how they depend on each other."""

import hashlib
import json
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

Refusal = Callable[[], str]
"""Says why something must not be started now; an empty answer lets it."""

Probe = Callable[[], AsyncGenerator[str, None]]
"""Asks again and again whether a process is ready.

An empty answer is yes, anything else says what is missing.
"""

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,98}[a-z0-9])?")
_GO_HEAP_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of the machine a process may take.

    Enforced by a cgroup where one can be made; Go's own soft limits are set everywhere. What should
    take few processors and gets no cgroup gives way to others.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    nice: int = 0
    """How readily it gives way to others, from 0 to 19."""
    timer_slack: float = 0.0
    """By how many seconds a timer of its may be late, so that one wakeup serves several.

    What comes over the network still wakes it at once. Servers written in Go keep hundreds of
    timers when they have nothing to do, and more than half of their time goes into waking up.
    """

    def __post_init__(self) -> None:
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ValueError(f"a process needs memory; {self.memory_bytes} bytes are no limit")
        if self.cpus is not None and self.cpus <= 0:
            raise ValueError(f"a process needs time to run; {self.cpus} CPUs are no limit")
        if not 0 <= self.nice <= 19:
            raise ValueError(f"nice goes from 0 to 19, not {self.nice}")
        if self.timer_slack < 0:
            raise ValueError(f"a timer cannot be early; {self.timer_slack} s are no slack")

    def environment(self) -> dict[str, str]:
        """What tells the Go runtime to stay within the limits."""
        environment: dict[str, str] = {}
        if self.memory_bytes is not None:
            environment["GOMEMLIMIT"] = f"{int(self.memory_bytes * _GO_HEAP_SHARE)}B"
        if self.cpus is not None:
            environment["GOMAXPROCS"] = str(max(1, math.ceil(self.cpus)))
        return environment


@dataclass(frozen=True, slots=True)
class Command:
    """A program with everything that decides how it behaves. Its first argument is its path."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    directory: Path | None = None
    limits: Limits = Limits()

    @property
    def hash(self) -> str:
        """Equal for two commands that would run the same."""
        text = json.dumps(
            [
                self.arguments,
                sorted(self.environment.items()),
                str(self.directory or ""),
                asdict(self.limits),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """How a process that was ready is found to hang. It is killed then, and started again."""

    probe: Probe
    """Asks whether it is alive. It has to bound itself the time that an answer may take."""
    every: float = 10.0
    """Seconds between two questions."""
    pause: float = 1.0
    """Seconds until the next question where the answer was bad."""
    patience: int = 3
    """This many bad answers in a row are a hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A process that a supervisor keeps running.

    It starts when `enough` of those in `after` are reachable, and stops before them.
    """

    name: str
    command: Command
    after: tuple[str, ...] = ()
    enough: int | None = None
    """How many of them have to be reachable; all, where nothing is said."""
    reachable: Probe | None = None
    """Asks whether those after it may start, where they wait themselves until it is ready.

    Where nothing is said, they start when it is ready.
    """
    ready: Probe | None = None
    alive: Liveness | None = None
    refusal: Refusal | None = None
    grace: float = 10.0

    def __post_init__(self) -> None:
        check_name(self.name)


def check_name(name: str) -> None:
    """Refuse a name that could not be the name of a file."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot name a process: use 1 to 100 lower case letters, digits, '-' and '.'"
        )


def check_declared(declared: Iterable[Declared]) -> dict[str, Declared]:
    """The declared processes by name, refused where their order makes no sense."""
    by_name: dict[str, Declared] = {}
    for one in declared:
        if one.name in by_name:
            raise ValueError(f"two processes are called {one.name!r}; give each its own name")
        by_name[one.name] = one
    for one in by_name.values():
        for other in one.after:
            if other not in by_name:
                raise ValueError(f"{one.name!r} starts after {other!r}, which is not declared")
    try:
        TopologicalSorter({one.name: one.after for one in by_name.values()}).prepare()
    except CycleError as error:
        raise ValueError(f"processes wait for each other: {' → '.join(error.args[1])}") from error
    return by_name
