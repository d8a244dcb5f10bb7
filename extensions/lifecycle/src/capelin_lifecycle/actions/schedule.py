"""Maintenance windows: whether one is open, and when the next one opens."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from capelin_lifecycle.api import Window

_FURTHEST = timedelta(days=366)
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Opening:
    """One time that a window is open."""

    start: datetime
    end: datetime

    def is_open(self, now: datetime) -> bool:
        """Whether it has started and not ended."""
        return self.start <= now < self.end


def window_problems(window: Window) -> list[str]:
    """What is wrong with a window."""
    try:
        zone = ZoneInfo(window.time_zone)
    except (ZoneInfoNotFoundError, ValueError):
        return [f"timeZone: no time zone is called {window.time_zone!r}; write Europe/Berlin"]
    try:
        next(CronSim(window.schedule, datetime(2026, 1, 1, tzinfo=zone)))
    except CronSimError as error:
        return [f"schedule: {window.schedule!r} is no cron expression: {error}"]
    except StopIteration:
        return [f"schedule: {window.schedule!r} never comes"]
    if not timedelta() < window.duration <= timedelta(days=7):
        return ["duration: a window is open for at most a week"]
    return []


def next_opening(window: Window, now: datetime) -> Opening | None:
    """The opening that is going on, or else the next one within a year."""
    zone = ZoneInfo(window.time_zone)
    # What goes on now has started at most its duration ago.
    starts = CronSim(window.schedule, (now - window.duration).astimezone(zone))
    for _, start in zip(range(_MOST), starts, strict=False):
        opening = Opening(start, start + window.duration)
        if now < opening.end:
            return opening
        if start > now + _FURTHEST:
            break
    return None
