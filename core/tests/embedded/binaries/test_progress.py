import io
from typing import TYPE_CHECKING

import pytest
from capelin.embedded.binaries import LiveProgress, PlainProgress, Progress, progress_here
from capelin.embedded.binaries.errors import WayFailedError
from capelin.embedded.binaries.progress import amount
from capelin.embedded.binaries.ways import Journal
from rich.console import Console

if TYPE_CHECKING:
    from .conftest import Told

WHAT, WAY = "etcd v3.6.5", "go build"


def tell_everything(progress: Progress) -> None:
    progress.started(WHAT, WAY)
    progress.advanced(WHAT, WAY, 310, None, "packages")
    progress.noted(WHAT, WAY, "it takes a while")
    progress.started("kwok v0.7.0", "image [b]")
    progress.failed("kwok v0.7.0", "image [b]", "there is none")
    progress.finished(WHAT, WAY)


LINES = [
    "etcd v3.6.5: go build: it takes a while",
    "kwok v0.7.0: image [b]: failed: there is none",
    "etcd v3.6.5: go build: done",
]


def test_plain_lines_tell_what_happens() -> None:
    stream = io.StringIO()
    tell_everything(PlainProgress(stream))
    assert [line for line in stream.getvalue().splitlines() if line in LINES] == LINES
    assert stream.getvalue().splitlines()[0] == "etcd v3.6.5: go build"


def test_plain_lines_tell_how_far_it_is_only_now_and_then() -> None:
    stream, now = io.StringIO(), [0.0]
    progress = PlainProgress(stream, every=10, clock=lambda: now[0])
    progress.started(WHAT, WAY)
    for second in range(25):
        now[0] = float(second)
        progress.advanced(WHAT, WAY, second, 25, "packages")
    assert stream.getvalue().splitlines()[1:] == [
        "etcd v3.6.5: go build: 10 of 25 packages",
        "etcd v3.6.5: go build: 20 of 25 packages",
    ]


def test_live_lines_are_shown_and_what_happened_stays_above() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    tell_everything(LiveProgress(console))
    shown = stream.getvalue()
    assert all(line in shown for line in LINES)
    assert "310 packages" in shown
    assert "kwok v0.7.0: image [b] " in shown


def test_the_cursor_comes_back_when_nothing_is_under_way() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    progress = LiveProgress(console)
    progress.started(WHAT, WAY)
    assert "\x1b[?25l" in stream.getvalue()
    assert "\x1b[?25h" not in stream.getvalue()
    progress.finished(WHAT, WAY)
    assert "\x1b[?25h" in stream.getvalue()


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveProgress), (False, PlainProgress)])
def test_a_terminal_gets_live_lines_and_a_log_plain_ones(
    terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", stream)
    assert isinstance(progress_here(), kind)


@pytest.mark.parametrize(
    ("done", "total", "unit", "words"),
    [
        (12_345_678, 40_000_000, "bytes", "12 of 40 MB"),
        (12_345_678, None, "bytes", "12 MB"),
        (3, None, "packages", "3 packages"),
    ],
)
def test_amounts_are_told_in_words(done: int, total: int | None, unit: str, words: str) -> None:
    assert amount(done, total, unit) == words


def test_a_way_that_fails_is_kept_once_and_the_next_can_be_tried(told: "Told") -> None:
    journal = Journal(told)
    for _ in range(2):
        with journal.trying(WHAT, WAY):
            raise WayFailedError("it rains")
    assert journal.failures == [(WAY, "it rains")]
    assert told.events[:2] == [("started", WHAT, WAY), ("failed", WHAT, WAY, "it rains")]


def test_a_fault_of_our_own_ends_the_line_and_is_not_hidden(told: "Told") -> None:
    with pytest.raises(ZeroDivisionError), Journal(told).trying(WHAT, WAY):
        _ = 1 / 0
    assert told.events[-1] == ("failed", WHAT, WAY, "stopped")
