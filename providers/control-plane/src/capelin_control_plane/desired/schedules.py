"""Schedules in the form of cron, in a time zone. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from capelin_control_plane.desired.control_plane import InvalidSpecError

CLOCK_ERROR: Final = timedelta(minutes=10)
"""How far the clocks of two providers may differ."""


def is_future(moment: datetime, now: datetime) -> bool:
    """Whether a recorded moment cannot be true: the clock was ahead then, or is behind now."""
    return moment > now + CLOCK_ERROR


def is_older(created: datetime, request: datetime, now: datetime) -> bool:
    """Whether something has to be replaced by a request. One from the future has an unknown age."""
    return created < request or is_future(created, now)


def occurrences(
    expression: str, time_zone: str, now: datetime, *, field: str, zone_field: str
) -> tuple[datetime, datetime]:
    """The latest moment of a schedule, and the next one.

    Args:
        expression: The cron expression.
        time_zone: The name of its time zone.
        now: The present.
        field: The field of the spec with the expression, for errors.
        zone_field: The field with the time zone.

    Raises:
        InvalidSpecError: the expression or the time zone cannot be read.
    """
    local = now.astimezone(zone(time_zone, zone_field))
    # cronsim works in whole seconds, and returns only moments before or after the given one.
    after = (now + timedelta(seconds=1)).astimezone(local.tzinfo)
    try:
        return next(CronSim(expression, after, reverse=True)), next(CronSim(expression, local))
    except CronSimError as error:
        raise InvalidSpecError(
            f"{field}: {expression!r} is not a cron expression: {error}"
        ) from error
    except StopIteration:
        raise InvalidSpecError(f"{field}: {expression!r} never occurs") from None


def around(
    moments: Iterable[datetime | None], now: datetime
) -> tuple[datetime | None, datetime | None]:
    """The latest moment in the past, and the next one in the future."""
    known = [moment for moment in moments if moment is not None]
    return (
        max((moment for moment in known if moment <= now), default=None),
        min((moment for moment in known if moment > now), default=None),
    )


def interval_of(expression: str, local: datetime) -> timedelta | None:
    """How long a schedule waits between its next two moments. None if it cannot be read."""
    try:
        moments = CronSim(expression, local)
        first = next(moments)
        return next(moments) - first
    except (CronSimError, StopIteration):
        return None


def zone(name: str, field: str) -> ZoneInfo:
    """A time zone by its name.

    Raises:
        InvalidSpecError: it does not exist.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidSpecError(
            f"{field}: {name!r} is not a time zone: write one such as Europe/Berlin"
        ) from None
