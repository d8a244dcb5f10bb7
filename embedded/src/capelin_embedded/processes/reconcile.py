"""Decides the next steps of a supervisor from the specs and the observations."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from capelin.backoff import exponential_delay

from capelin_embedded.processes.proc import Identity, MarkedProcess
from capelin_embedded.processes.spec import ProcessSpec

FAILED_AFTER = 3
"""The number of ends in a row after which a process counts as failed. It still restarts."""

_SHORTEST_PAUSE = 0.015
_LONGEST_PAUSE = 0.5
_POLLS = 100
_STALLED_CHECKS = 2


class Phase(StrEnum):
    WAITING = "Waiting"
    STARTING = "Starting"
    RUNNING = "Running"
    NOT_READY = "NotReady"
    """It was ready and still runs, but its readiness probe has failed for a while."""
    BACKING_OFF = "BackingOff"
    FAILED = "Failed"
    STOPPING = "Stopping"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before restarting a process that ended."""

    first: float = 0.1
    factor: float = 2.0
    longest: float = 30.0
    steady_after: float = 60.0
    """A run of this many seconds resets the count of failures."""
    settled_after: float = 1.0
    """So does a run that was ready for this many seconds: back off only after failed starts."""

    def delay(self, failures: int) -> float:
        """Seconds to wait after this many ends in a row."""
        return exponential_delay(
            failures, first=self.first, longest=self.longest, factor=self.factor
        )

    def failures(self, before: int, ran_for: float, ready_for: float = 0.0) -> int:
        """The number of ends in a row, with one more after a run of `ran_for` seconds."""
        settled = ran_for >= self.steady_after or ready_for >= self.settled_after
        return 1 if settled else before + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    alive: bool
    hash: str = ""
    after: tuple[str, ...] = ()
    reachable: bool = False
    ready: bool = False
    """Whether it has become ready since its start."""
    serving: bool = True
    """Whether its readiness probe still succeeds, with short interruptions."""
    stopping: bool = False
    failures: int = 0
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps to take now, and the time of the next reconcile without changes."""

    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    requeue_at: float | None = None


def next_steps(
    specs: Mapping[str, ProcessSpec], observed: Mapping[str, Observed], now: float
) -> Steps:
    alive = {name: process for name, process in observed.items() if process.alive}
    outdated = {name for name in alive if _is_outdated(name, specs, observed)}
    stop = (_surplus(alive, specs) | outdated) - {name for name in alive if alive[name].stopping}
    startable = [
        name
        for name, spec in sorted(specs.items())
        if name not in alive and _may_start(spec, specs, observed)
    ]
    retry_at = {name: observed[name].retry_at if name in observed else now for name in startable}
    return Steps(
        start=tuple(name for name in startable if retry_at[name] <= now),
        stop=tuple(sorted(stop)),
        requeue_at=min((time for time in retry_at.values() if time > now), default=None),
    )


def phase(spec: ProcessSpec | None, observed: Observed | None) -> Phase:
    if observed is not None and observed.stopping:
        return Phase.STOPPING
    if observed is not None and observed.alive:
        if spec is None or spec.command.hash != observed.hash:
            return Phase.STOPPING
        if not observed.ready:
            return Phase.STARTING
        return Phase.RUNNING if observed.serving else Phase.NOT_READY
    if observed is not None and observed.failures:
        return Phase.FAILED if observed.failures >= FAILED_AFTER else Phase.BACKING_OFF
    return Phase.WAITING


def is_hung(failed: int, threshold: int, *, stalled: bool) -> bool:
    """Whether a process hangs after so many failed checks in a row.

    A process hangs for certain if none of its threads ran between two failed checks and none waits
    for a CPU, for example after SIGSTOP. One that runs, or would run on a less busy machine, gets
    all checks up to the threshold.
    """
    return failed >= threshold or (stalled and failed >= _STALLED_CHECKS)


def poll_pause(waited: float) -> float:
    """Seconds between two probes of a process that has been starting for `waited` seconds.

    Short at first, so that probing does not delay others. Longer later, so that it does not slow
    down the start.
    """
    return min(max(waited / _POLLS, _SHORTEST_PAUSE), _LONGEST_PAUSE)


def strays(marked: Iterable[MarkedProcess], remembered: Collection[int]) -> list[Identity]:
    """Marked processes that belong to no remembered process.

    A remembered process leads its own session, which includes its children.
    """
    return [process.identity for process in marked if process.session not in remembered]


def _surplus(alive: Mapping[str, Observed], specs: Mapping[str, ProcessSpec]) -> set[str]:
    """Processes without a spec, except those that another of them still uses."""
    unwanted = {name for name in alive if name not in specs}
    used = {other for name in unwanted for other in alive[name].after}
    # Records from different times may form a cycle. Then stop all of them at once.
    return unwanted - used or unwanted


def _may_start(
    spec: ProcessSpec, specs: Mapping[str, ProcessSpec], observed: Mapping[str, Observed]
) -> bool:
    reachable = sum(_is_reachable(other, specs, observed) for other in spec.after)
    needed = len(spec.after) if spec.enough is None else min(spec.enough, len(spec.after))
    return reachable >= needed


def _is_outdated(
    name: str, specs: Mapping[str, ProcessSpec], observed: Mapping[str, Observed]
) -> bool:
    return name in specs and specs[name].command.hash != observed[name].hash


def _is_reachable(
    name: str, specs: Mapping[str, ProcessSpec], observed: Mapping[str, Observed]
) -> bool:
    process = observed.get(name)
    return (
        process is not None
        and process.alive
        and (process.reachable or process.ready)
        and not process.stopping
        and not _is_outdated(name, specs, observed)
    )
