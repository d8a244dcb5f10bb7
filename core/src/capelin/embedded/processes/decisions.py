"""What a supervisor does next, decided from what is declared and what is seen."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from capelin.embedded.processes.command import Declared
from capelin.embedded.processes.kernel import Identity, Marked

FAILED_AFTER = 3
"""This many ends in a row make a process a failed one. It is still tried again."""

_DOUBLINGS = 64
_SHORTEST_PAUSE = 0.015
_LONGEST_PAUSE = 0.5
_POLLS = 100


class Phase(StrEnum):
    """What a process is doing."""

    WAITING = "Waiting"
    STARTING = "Starting"
    RUNNING = "Running"
    BACKING_OFF = "BackingOff"
    FAILED = "Failed"
    STOPPING = "Stopping"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a process that ended is started again."""

    first: float = 0.1
    factor: float = 2.0
    longest: float = 30.0
    steady_after: float = 60.0

    def delay(self, failures: int) -> float:
        """Seconds to wait after this many ends in a row."""
        # More doublings than these overflow a float, and no wait is that long.
        return min(self.longest, self.first * self.factor ** min(failures - 1, _DOUBLINGS))

    def failures(self, before: int, ran_for: float) -> int:
        """Ends in a row, counting one after `ran_for` seconds: a long run starts the count anew."""
        return 1 if ran_for >= self.steady_after else before + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One process as it is now."""

    alive: bool
    hash: str = ""
    after: tuple[str, ...] = ()
    reachable: bool = False
    ready: bool = False
    stopping: bool = False
    failures: int = 0
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Steps:
    """What to do now, and when to look again if nothing happens before."""

    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    look_again_at: float | None = None


def next_steps(declared: Mapping[str, Declared], seen: Mapping[str, Seen], now: float) -> Steps:
    """Which processes to start and stop now."""
    alive = {name: one for name, one in seen.items() if one.alive}
    outdated = {name for name in alive if _is_outdated(name, declared, seen)}
    stop = (_to_end(alive, declared) | outdated) - {n for n in alive if alive[n].stopping}
    startable = [
        name
        for name, one in sorted(declared.items())
        if name not in alive and _may_start(one, declared, seen)
    ]
    retry_at = {name: seen[name].retry_at if name in seen else now for name in startable}
    return Steps(
        start=tuple(name for name in startable if retry_at[name] <= now),
        stop=tuple(sorted(stop)),
        look_again_at=min((at for at in retry_at.values() if at > now), default=None),
    )


def phase(declared: Declared | None, seen: Seen | None) -> Phase:
    """What a process is doing, for people."""
    if seen is not None and seen.stopping:
        return Phase.STOPPING
    if seen is not None and seen.alive:
        if declared is None or declared.command.hash != seen.hash:
            return Phase.STOPPING
        return Phase.RUNNING if seen.ready else Phase.STARTING
    if seen is not None and seen.failures:
        return Phase.FAILED if seen.failures >= FAILED_AFTER else Phase.BACKING_OFF
    return Phase.WAITING


def poll_pause(waited: float) -> float:
    """Seconds between two looks at a process that has been starting for `waited` seconds.

    Short, so that nobody waits for us; longer when it takes long, so that we do not slow it down.
    """
    return min(max(waited / _POLLS, _SHORTEST_PAUSE), _LONGEST_PAUSE)


def strays(marked: Iterable[Marked], remembered: Collection[int]) -> list[Identity]:
    """Processes that carry our marker and belong to no remembered one.

    A remembered process leads a session of its own, so what it started itself is not a stray.
    """
    return [one.identity for one in marked if one.session not in remembered]


def _to_end(alive: Mapping[str, Seen], declared: Mapping[str, Declared]) -> set[str]:
    """What is no longer declared and no longer used by others that are to end too."""
    unwanted = {name for name in alive if name not in declared}
    used = {other for name in unwanted for other in alive[name].after}
    # Should they all use each other, as no declaration can say but a state folder may: all at once.
    return unwanted - used or unwanted


def _may_start(one: Declared, declared: Mapping[str, Declared], seen: Mapping[str, Seen]) -> bool:
    reachable = sum(_is_reachable(other, declared, seen) for other in one.after)
    return reachable >= (len(one.after) if one.enough is None else min(one.enough, len(one.after)))


def _is_outdated(name: str, declared: Mapping[str, Declared], seen: Mapping[str, Seen]) -> bool:
    return name in declared and declared[name].command.hash != seen[name].hash


def _is_reachable(name: str, declared: Mapping[str, Declared], seen: Mapping[str, Seen]) -> bool:
    one = seen.get(name)
    return (
        one is not None
        and one.alive
        and (one.reachable or one.ready)
        and not one.stopping
        and not _is_outdated(name, declared, seen)
    )
