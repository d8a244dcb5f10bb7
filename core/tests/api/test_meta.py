"""Times, metadata and conditions."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from capelin.api import Condition, MicroTime, Model, Time
from pydantic import ValidationError


class Moments(Model):
    second: Time | None = None
    micro: MicroTime | None = None


AT = datetime(2025, 1, 31, 12, 30, 15, 123456, tzinfo=timezone(timedelta(hours=2)))


def test_times_are_written_in_utc_and_in_kubernetes_format() -> None:
    assert Moments(second=AT, micro=AT).dump() == {
        "second": "2025-01-31T10:30:15Z",
        "micro": "2025-01-31T10:30:15.123456Z",
    }


def test_a_micro_time_always_has_six_digits() -> None:
    whole = AT.replace(microsecond=0)
    assert Moments(micro=whole).dump() == {"micro": "2025-01-31T10:30:15.000000Z"}


def test_a_time_survives_a_round_trip_because_it_has_no_fraction() -> None:
    moments = Moments(second=AT)
    assert Moments.read(moments.dump()) == moments


@pytest.mark.parametrize(
    "text",
    ["2025-01-31T10:30:15Z", "2025-01-31T12:30:15+02:00", "2025-01-31t10:30:15.000000001z"],
)
def test_a_time_can_be_read_in_several_formats(text: str) -> None:
    expected = datetime(2025, 1, 31, 10, 30, 15, tzinfo=UTC)
    assert Moments.read({"second": text}).second == expected
    assert Moments.read_json(f'{{"second": "{text}"}}').second == expected


WRONG: list[object] = [
    *("2025-01-31", "2025-01-31T10:30:15", "2025-02-30T10:30:15Z", "1738319415", 1738319415, []),
    *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "2025-01-31T10:30:15+99:00"),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_an_invalid_or_unportable_time_fails_with_an_example(wrong: object) -> None:
    with pytest.raises(ValidationError, match="a time has to look like 2006-01-02T15:04:05Z"):
        Moments.read({"second": wrong})


def test_a_time_without_a_zone_fails() -> None:
    with pytest.raises(ValidationError, match="a time has to look like"):
        Moments(second=AT.replace(tzinfo=None))


@pytest.mark.parametrize("reason", ["", "two words", "-", "ends-"])
def test_the_reason_of_a_condition_must_be_a_word(reason: str) -> None:
    with pytest.raises(ValidationError, match="reason"):
        Condition(type="Ready", status="True", reason=reason, last_transition_time=AT)
