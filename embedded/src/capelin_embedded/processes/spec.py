"""Specs of processes: command lines, limits and probes, and the order of processes."""

import hashlib
import json
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

StartCheck = Callable[[], str]
"""Returns the reason not to start a process now, or an empty string."""

Probe = Callable[[], AsyncGenerator[str, None]]
"""Checks a process each time the generator advances.

It yields an empty string for success, or else the problem.
"""

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,98}[a-z0-9])?")
_GO_HEAP_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of the machine a process may use.

    A cgroup enforces them if possible. Go's runtime always gets soft limits.
    A process with a CPU limit and without a cgroup gets a higher nice value instead.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    nice: int = 0
    """The nice value, from 0 to 19."""
    timer_slack: float = 0.0
    """The seconds by which the kernel may delay the process's timers, to serve several at once.

    The network still wakes it at once. Idle servers written in Go keep hundreds of timers and spend
    more than half of their CPU time on waking up.
    """

    def __post_init__(self) -> None:
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ValueError(f"the memory limit must be positive, not {self.memory_bytes} bytes")
        if self.cpus is not None and self.cpus <= 0:
            raise ValueError(f"the CPU limit must be positive, not {self.cpus}")
        if not 0 <= self.nice <= 19:
            raise ValueError(f"nice must be from 0 to 19, not {self.nice}")
        if self.timer_slack < 0:
            raise ValueError(f"the timer slack must not be negative, but is {self.timer_slack} s")

    def environment(self) -> dict[str, str]:
        """The variables that make Go's runtime respect the limits."""
        environment: dict[str, str] = {}
        if self.memory_bytes is not None:
            environment["GOMEMLIMIT"] = f"{int(self.memory_bytes * _GO_HEAP_SHARE)}B"
        if self.cpus is not None:
            environment["GOMAXPROCS"] = str(max(1, math.ceil(self.cpus)))
        return environment


@dataclass(frozen=True, slots=True)
class Command:
    """A program with everything that affects its behavior. Its first argument is its path."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    directory: Path | None = None
    limits: Limits = Limits()

    @property
    def hash(self) -> str:
        """Equal for two commands with the same effect."""
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
    """How to detect that a process hangs. The supervisor then kills and restarts it."""

    probe: Probe
    """Must limit the time of each check itself."""
    period: float = 10.0
    """Seconds between two checks."""
    retry_period: float = 1.0
    """Seconds until the next check after a failed one."""
    failure_threshold: int = 3
    """The process hangs after this many failed checks in a row."""
    stalled_seconds: float = 10.0
    """A process that is not ready yet hangs if none of its threads runs for this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process that a supervisor keeps running.

    It starts when `enough` of the processes in `after` are reachable, and stops before them.
    """

    name: str
    command: Command
    after: tuple[str, ...] = ()
    enough: int | None = None
    """The number of processes of `after` that must be reachable. None means all."""
    reachable: Probe | None = None
    """Whether the processes after it may start, if they can wait themselves until it is ready.

    Without this probe they start when it is ready.
    """
    readiness: Probe | None = None
    readiness_period: float | None = None
    """Seconds between two checks of a process that was ready. None: it is ready until it ends."""
    liveness: Liveness | None = None
    start_check: StartCheck | None = None
    grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""

    def __post_init__(self) -> None:
        # Names become file names.
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} cannot name a process: use 1 to 100 lower case letters, digits,"
                " '-' and '.'"
            )


def check_specs(specs: Iterable[ProcessSpec]) -> dict[str, ProcessSpec]:
    """The specs by name.

    Raises:
        ValueError: Two have one name, or their order has a gap or a cycle.
    """
    by_name: dict[str, ProcessSpec] = {}
    for spec in specs:
        if spec.name in by_name:
            raise ValueError(f"two processes have the name {spec.name!r}: use unique names")
        by_name[spec.name] = spec
    for spec in by_name.values():
        for other in spec.after:
            if other not in by_name:
                raise ValueError(f"{spec.name!r} starts after {other!r}, which is not declared")
    try:
        TopologicalSorter({spec.name: spec.after for spec in by_name.values()}).prepare()
    except CycleError as error:
        raise ValueError(f"processes wait for each other: {' → '.join(error.args[1])}") from error
    return by_name
