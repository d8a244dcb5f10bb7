"""Counts of calls, in memory that all processes of a server share, as Prometheus reads them.

Each process adds to numbers of its own, so none waits for another, and any of them can tell the
sums. The numbers of a process that died stay.
"""

import mmap
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from capelin.runtime.extension import Handler

OUTCOMES = ("success", "retry", "failure", "timeout", "abandoned")
"""How calls end: the last two when the caller would not wait, or did not."""

BUCKETS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Upper bounds of durations in seconds."""

_SECONDS = len(OUTCOMES)
_BUCKETS = _SECONDS + 1
_WIDTH = _BUCKETS + len(BUCKETS) + 1
"""How many numbers a handler has: its outcomes, all seconds, the buckets and what is above them."""


class Counter:
    """What one process counts with."""

    def __init__(self, numbers: "memoryview[float]", places: dict[str, int]) -> None:
        self.numbers = numbers
        self._places = places

    def count(self, path: str, outcome: str, seconds: float) -> None:
        """Note the end of a call."""
        place = self._places[path]
        self.numbers[place + OUTCOMES.index(outcome)] += 1
        self.numbers[place + _SECONDS] += seconds
        self.numbers[place + _BUCKETS + bisect_left(BUCKETS, seconds)] += 1


class Metrics:
    """The counts of all handlers in all processes."""

    def __init__(self, handlers: Sequence[Handler], processes: int = 1) -> None:
        self._handlers = tuple(handlers)
        self._width = _WIDTH * len(handlers)
        memory = mmap.mmap(-1, max(1, self._width * processes) * 8)
        self._numbers = memoryview(memory).cast("d")

    def process(self, index: int) -> Counter:
        """What the process of this number counts with."""
        start = index * self._width
        places = {h.path: start + i * _WIDTH for i, h in enumerate(self._handlers)}
        return Counter(self._numbers, places)

    def page(self) -> str:
        """All counts in Prometheus' text format."""
        return "\n".join([*self._requests(), *self._durations(), *self._deprecations(), ""])

    def _sums(self, index: int) -> list[float]:
        """The numbers of one handler over all processes."""
        starts = range(index * _WIDTH, len(self._numbers), self._width)
        rows = [self._numbers[start : start + _WIDTH] for start in starts]
        return [sum(column) for column in zip(*rows, strict=True)]

    def _requests(self) -> Iterator[str]:
        name = "capelin_runtime_requests_total"
        yield f"# HELP {name} Calls by how they ended."
        yield f"# TYPE {name} counter"
        for index, handler in enumerate(self._handlers):
            sums = self._sums(index)
            for outcome, count in zip(OUTCOMES, sums[:_SECONDS], strict=True):
                yield f'{name}{{{_labels(handler)},outcome="{outcome}"}} {count:.0f}'

    def _durations(self) -> Iterator[str]:
        name = "capelin_runtime_request_duration_seconds"
        yield f"# HELP {name} How long calls took."
        yield f"# TYPE {name} histogram"
        for index, handler in enumerate(self._handlers):
            sums, below = self._sums(index), 0.0
            for bound, count in zip((*BUCKETS, "+Inf"), sums[_BUCKETS:], strict=True):
                below += count
                yield f'{name}_bucket{{{_labels(handler)},le="{bound}"}} {below:.0f}'
            yield f"{name}_sum{{{_labels(handler)}}} {sums[_SECONDS]!r}"
            yield f"{name}_count{{{_labels(handler)}}} {below:.0f}"

    def _deprecations(self) -> Iterator[str]:
        name = "capelin_runtime_deprecated_requests_total"
        yield f"# HELP {name} Calls in a version of a hook that is going to go."
        yield f"# TYPE {name} counter"
        for index, handler in enumerate(self._handlers):
            if (going := handler.hook.deprecated) is not None:
                calls = sum(self._sums(index)[:_SECONDS])
                said = f'since="{going.release}",replaced_by="{going.replaced_by}"'
                yield f"{name}{{{_labels(handler)},{said}}} {calls:.0f}"


def _labels(handler: Handler) -> str:
    # None of these can hold a character that would have to be escaped.
    hook = handler.hook.id
    return (
        f'handler="{handler.name}",hook="{hook.name}",group="{hook.group}",version="{hook.version}"'
    )
