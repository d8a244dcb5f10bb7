"""Durations in Go's format."""

from datetime import timedelta

import pytest
from capelin.api import Model
from capelin.api.fields import Duration, format_duration, parse_duration
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError


class Timed(Model):
    timeout: Duration


@pytest.mark.parametrize(
    ("text", "span", "canonical"),
    [
        ("0", timedelta(), "0s"),
        ("90s", timedelta(seconds=90), "1m30s"),
        ("1h30m", timedelta(minutes=90), "1h30m0s"),
        ("1.5h", timedelta(minutes=90), "1h30m0s"),
        ("1h5s", timedelta(hours=1, seconds=5), "1h0m5s"),
        ("200ms", timedelta(milliseconds=200), "200ms"),
        ("1m0.25s", timedelta(minutes=1, milliseconds=250), "1m0.25s"),
        ("240h", timedelta(days=10), "240h0m0s"),
    ],
)
def test_durations_have_the_format_of_go(text: str, span: timedelta, canonical: str) -> None:
    assert parse_duration(text) == span
    assert format_duration(span) == canonical


@pytest.mark.parametrize("text", ["", "5", "1d", "-1s", "1m1h", "1 s", "PT5M", "1h90m", "1s\n"])
def test_an_invalid_duration_fails_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match=r"examples: 1h30m, 90s, 1\.5s, 200ms"):
        Timed.read({"timeout": text})


@pytest.mark.parametrize(
    "span", [timedelta(seconds=-1), timedelta(hours=1_000_000), timedelta(microseconds=1)]
)
def test_an_unsupported_timedelta_fails_with_the_valid_range(span: timedelta) -> None:
    with pytest.raises(ValidationError, match=r"between 0 and 999999h59m59\.999s, in whole milli"):
        Timed(timeout=span)


@given(milliseconds=st.integers(0, 999_999 * 3_600_000))
def test_durations_survive_a_round_trip(milliseconds: int) -> None:
    timed = Timed(timeout=timedelta(milliseconds=milliseconds))
    assert Timed.read(timed.dump()) == timed
