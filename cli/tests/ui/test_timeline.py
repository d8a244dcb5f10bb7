"""The spans of a timeline, and their bounds."""

from datetime import datetime, timedelta

from capelin_cli.ui.model import Span
from capelin_cli.ui.timeline import (
    LONGEST_TEXT,
    MOST_LANES,
    MOST_SPANS,
    Phase,
    Timeline,
    continued,
    result_span,
)
from capelin_lifecycle.api import LifecycleResult

from .objects import START, result


def later(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def texts(spans: list[Span]) -> list[tuple[str, float, float | None]]:
    return [
        (
            span.text,
            (span.start - START).total_seconds(),
            (span.end - START).total_seconds() if span.end else None,
        )
        for span in spans
    ]


def test_the_same_phase_continues_a_span() -> None:
    spans = continued([], Phase("good", "Available"), START)
    assert continued(spans, Phase("good", "Available"), later(9)) == spans


def test_another_phase_ends_a_span() -> None:
    spans = continued([], Phase("good", "Available"), START)
    spans = continued(spans, Phase("waiting", "RollingOut"), later(9))
    assert texts(spans) == [("Available", 0, 9), ("RollingOut", 9, None)]


def test_a_span_begins_when_the_object_shows_it() -> None:
    spans = continued([], Phase("good", "Available", later(-60)), START)
    spans = continued(spans, Phase("waiting", "RollingOut", later(5)), later(9))
    assert texts(spans) == [("Available", -60, 5), ("RollingOut", 5, None)]


def test_a_span_never_begins_before_the_last_one_or_in_the_future() -> None:
    spans = continued([], Phase("good", "Available", later(30)), START)
    spans = continued(spans, Phase("bad", "Failed", later(-90)), later(9))
    assert texts(spans) == [("Available", 0, 0), ("Failed", 0, None)]


def test_a_deleted_object_ends_its_span_once() -> None:
    spans = continued([], Phase("good", "Running"), START)
    spans = continued(spans, None, later(4))
    assert texts(continued(spans, None, later(8))) == [("Running", 0, 4)]


def test_spans_and_texts_are_bounded() -> None:
    spans: list[Span] = []
    for number in range(MOST_SPANS + 5):
        spans = continued(spans, Phase("good", f"{number} {'x' * 1000}"), later(number))
    assert len(spans) == MOST_SPANS
    assert len(spans[-1].text) == LONGEST_TEXT


def test_lanes_are_bounded() -> None:
    timeline = Timeline()
    for number in range(MOST_LANES["Machine"] + 5):
        timeline.observe("Machine", f"m{number}", Phase("good", "Running"), later(number))
    titles = [lane.title for lane in timeline.lanes()]
    assert len(titles) == MOST_LANES["Machine"]
    assert "m0" not in titles


def test_a_result_that_waits_is_an_open_span() -> None:
    span = result_span(LifecycleResult.read(result(called=3, since=5)))
    assert span is not None
    assert texts([span]) == [("Waiting (v1.34.4): waits for approval", 3, None)]


def test_the_answer_of_a_policy_ends_its_span() -> None:
    timeline = Timeline()
    timeline.observe_result(LifecycleResult.read(result()), START, exists=True)
    answered = LifecycleResult.read(result(phase="Done", message="approved", since=40))
    timeline.observe_result(answered, later(41), exists=True)
    timeline.observe_result(answered, later(90), exists=False)
    (lane,) = timeline.lanes()
    assert (lane.kind, lane.title) == ("Hook", "BeforeClusterUpgrade · freeze")
    assert texts(lane.spans) == [("Done (v1.34.4): approved", 0, 40)]
    assert lane.spans[0].state == "good"
