"""Moments that users name."""

from datetime import UTC, datetime, timedelta

import pytest
from capelin.errors import InvalidInputError
from capelin_cli.clusters.backup_maintenance import parse_moment

NOW = datetime(2026, 1, 31, 3, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2026-01-31T02:59:00Z", "2026-01-31T03:59:00+01:00"])
def test_a_moment_has_a_time_zone(text: str) -> None:
    assert parse_moment(text, NOW) == NOW - timedelta(minutes=1)


def test_the_latest_moment_has_no_time() -> None:
    assert parse_moment("latest", NOW) is None


@pytest.mark.parametrize("text", ["yesterday", "2026-01-31T02:59:00", "2026-01-31T03:01:00Z"])
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a moment in the past") as error:
        parse_moment(text, NOW)
    assert error.value.hint == "Write it as 2026-01-31T03:00:00Z, or write latest."
