import io
from typing import TYPE_CHECKING

import pytest
from capelin_embedded.binaries import (
    LiveProgress,
    PlainProgress,
    Progress,
    ProgressEvent,
    default_progress,
)
from capelin_embedded.binaries.errors import SourceFailedError
from capelin_embedded.binaries.progress import amount
from capelin_embedded.binaries.sources import Attempts
from rich.console import Console

if TYPE_CHECKING:
    from .conftest import RecordedProgress

WHAT, SOURCE = "etcd v3.6.8", "go build"


def report_all_events(progress: Progress) -> None:
    progress(ProgressEvent("started", WHAT, SOURCE))
    progress(ProgressEvent("advanced", WHAT, SOURCE, done=310, unit="packages"))
    progress(ProgressEvent("noted", WHAT, SOURCE, "it takes a while"))
    progress(ProgressEvent("started", "kwok v0.7.0", "image [b]"))
    progress(ProgressEvent("failed", "kwok v0.7.0", "image [b]", "there is none"))
    progress(ProgressEvent("finished", WHAT, SOURCE))


LINES = [
    "etcd v3.6.8: go build: it takes a while",
    "kwok v0.7.0: image [b]: failed: there is none",
    "etcd v3.6.8: go build: done",
]


def test_plain_progress_prints_events() -> None:
    stream = io.StringIO()
    report_all_events(PlainProgress(stream))
    assert [line for line in stream.getvalue().splitlines() if line in LINES] == LINES
    assert stream.getvalue().splitlines()[0] == "etcd v3.6.8: go build"


def test_plain_progress_prints_amounts_every_ten_seconds() -> None:
    stream, now = io.StringIO(), [0.0]
    progress = PlainProgress(stream, every=10, clock=lambda: now[0])
    progress(ProgressEvent("started", WHAT, SOURCE))
    for second in range(25):
        now[0] = float(second)
        progress(ProgressEvent("advanced", WHAT, SOURCE, done=second, total=25, unit="packages"))
    assert stream.getvalue().splitlines()[1:] == [
        "etcd v3.6.8: go build: 10 of 25 packages",
        "etcd v3.6.8: go build: 20 of 25 packages",
    ]


def test_live_progress_shows_amounts_below_the_printed_events() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    report_all_events(LiveProgress(console))
    shown = stream.getvalue()
    assert all(line in shown for line in LINES)
    assert "310 packages" in shown
    assert "kwok v0.7.0: image [b] " in shown


def test_live_progress_hides_the_cursor_only_during_work() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    progress = LiveProgress(console)
    progress(ProgressEvent("started", WHAT, SOURCE))
    assert "\x1b[?25l" in stream.getvalue()
    assert "\x1b[?25h" not in stream.getvalue()
    progress(ProgressEvent("finished", WHAT, SOURCE))
    assert "\x1b[?25h" in stream.getvalue()


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveProgress), (False, PlainProgress)])
def test_the_terminal_decides_the_kind_of_progress(
    terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", stream)
    assert isinstance(default_progress(), kind)


@pytest.mark.parametrize(
    ("done", "total", "unit", "words"),
    [
        (12_345_678, 40_000_000, "bytes", "12 of 40 MB"),
        (12_345_678, None, "bytes", "12 MB"),
        (3, None, "packages", "3 packages"),
    ],
)
def test_amounts_have_units(done: int, total: int | None, unit: str, words: str) -> None:
    assert amount(done, total, unit) == words


def test_a_repeated_failure_is_shown_once(
    progress: "RecordedProgress",
) -> None:
    attempts = Attempts(progress)
    for _ in range(2):
        with attempts.attempt(WHAT, SOURCE):
            raise SourceFailedError("it rains")
    assert attempts.failures == [(SOURCE, "it rains")]
    assert progress.events[:2] == [("started", WHAT, SOURCE), ("failed", WHAT, SOURCE, "it rains")]


def test_an_unexpected_exception_ends_the_line_and_is_raised(progress: "RecordedProgress") -> None:
    with pytest.raises(ZeroDivisionError), Attempts(progress).attempt(WHAT, SOURCE):
        _ = 1 / 0
    assert progress.events[-1] == ("failed", WHAT, SOURCE, "stopped")


@pytest.mark.parametrize(
    ("done", "text"), [(310, "310 of 1210 packages"), (1210, "1210 of 1210 packages, linking")]
)
def test_a_build_shows_its_packages(done: int, text: str) -> None:
    event = ProgressEvent("advanced", WHAT, SOURCE, "", done, 1210, "packages")
    assert str(event) == f"{WHAT}: {SOURCE}: {text}"
