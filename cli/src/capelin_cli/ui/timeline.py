"""Records a cluster's history in spans: hooks, parts and the Machines that changed. Pure."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from capelin_lifecycle.api import LifecycleResult

from capelin_cli.status.cluster_tree import State
from capelin_cli.ui.model import Lane, LaneKind, Span

MOST_SPANS: Final = 40
MOST_LANES: Final[dict[LaneKind, int]] = {
    "Cluster": 1,
    "Hook": 40,
    "ControlPlane": 2,
    "Workers": 40,
    "Machine": 60,
}
LONGEST_TEXT: Final = 500
_OF_POLICY: Final = " · "
_KINDS: Final[Sequence[LaneKind]] = ("Cluster", "Hook", "ControlPlane", "Workers", "Machine")
_RESULT_STATES: Final[dict[str, State]] = {
    "Waiting": "waiting",
    "Running": "waiting",
    "Paused": "asleep",
    "Done": "good",
    "Failed": "bad",
}


@dataclass(frozen=True, slots=True)
class Phase:
    """The present phase of an object."""

    state: State
    text: str
    since: datetime | None = None
    """When it began, if the object shows it."""


def continued(spans: Sequence[Span], phase: Phase | None, now: datetime) -> list[Span]:
    """The spans after an observation. None if the object does not exist or the hook not wait."""
    last = spans[-1] if spans else None
    is_open = last is not None and last.end is None
    if phase is None:
        return [*spans[:-1], _ended(last, now)] if last is not None and is_open else [*spans]
    text = sys.intern(shortened(phase.text))
    if last is not None and is_open:
        if (last.state, last.text) == (phase.state, text):
            return [*spans]
        start = max(last.start, min(phase.since or now, now))
        spans = [*spans[:-1], _ended(last, start)]
    else:
        start = min(phase.since or now, now)
    return [*spans, Span(start=start, state=phase.state, text=text)][-MOST_SPANS:]


def shortened(text: str) -> str:
    """A text of bounded length."""
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _ended(span: Span, end: datetime) -> Span:
    return replace(span, end=end)


@dataclass(slots=True)
class Timeline:
    """The lanes of one cluster."""

    _lanes: dict[tuple[LaneKind, str], list[Span]] = field(
        default_factory=dict[tuple[LaneKind, str], list[Span]]
    )

    def observe(self, kind: LaneKind, title: str, phase: Phase | None, now: datetime) -> None:
        """Record the phase of an object."""
        key = (kind, title)
        spans = continued(self._lanes.get(key, []), phase, now)
        if not spans:
            return
        self._lanes[key] = spans
        self._bound(kind)

    def observe_result(self, result: LifecycleResult, now: datetime, *, exists: bool) -> None:
        """Record the result of a policy: an answer to a hook."""
        span = result_span(result)
        if span is None:
            return
        if not exists and span.end is None:
            span = _ended(span, now)
        self._forget_response(result)
        key: tuple[LaneKind, str] = (
            "Hook",
            f"{result.spec.hook}{_OF_POLICY}{result.spec.policy.name}",
        )
        others = [each for each in self._lanes.get(key, []) if each.start != span.start]
        self._lanes[key] = sorted((*others, span), key=lambda each: each.start)[-MOST_SPANS:]
        self._bound("Hook")

    def _forget_response(self, result: LifecycleResult) -> None:
        """Forget what the Cluster showed about a policy before its result was read."""
        spans = self._lanes.get(("Hook", result.spec.hook), [])
        if spans and spans[-1].text.startswith(f"policy {result.spec.policy.name}"):
            del self._lanes["Hook", result.spec.hook]

    def open_hooks(self) -> list[str]:
        """The hooks of other extensions that block."""
        return [
            title
            for (kind, title), spans in self._lanes.items()
            if kind == "Hook" and _OF_POLICY not in title and spans[-1].end is None
        ]

    def has_lane(self, kind: LaneKind, title: str) -> bool:
        """Whether something was recorded."""
        return (kind, title) in self._lanes

    def lanes(self) -> list[Lane]:
        """All lanes: hooks before the parts that wait for them, the earliest first."""
        ordered = sorted(
            self._lanes.items(),
            key=lambda item: (_KINDS.index(item[0][0]), item[1][0].start, item[0][1]),
        )
        return [Lane(kind=kind, title=title, spans=spans) for (kind, title), spans in ordered]

    def _bound(self, kind: LaneKind) -> None:
        """Forget the lanes whose last change is oldest."""
        keys = [key for key in self._lanes if key[0] == kind]
        if len(keys) > MOST_LANES[kind]:
            keys.sort(key=lambda key: self._lanes[key][-1].end or self._lanes[key][-1].start)
            del self._lanes[keys[0]]


def result_span(result: LifecycleResult) -> Span | None:
    """From the first call of a hook to the answer that let Cluster API continue."""
    spec, status = result.spec, result.status
    if status is None:
        return None
    start = min(spec.called or status.since, status.since)
    answer = status.message or status.phase.lower()
    version = f" ({spec.to_version})" if spec.to_version else ""
    return Span(
        start=start,
        end=status.since if status.phase in {"Done", "Failed"} else None,
        state=_RESULT_STATES.get(status.phase, "unknown"),
        text=shortened(f"{status.phase}{version}: {answer}"),
    )
