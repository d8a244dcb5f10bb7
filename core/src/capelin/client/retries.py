"""When a request may be sent again, and after how long."""

from dataclasses import dataclass

_CONNECTING = 5
_ASKED_TO_WAIT = 10


@dataclass(frozen=True, slots=True)
class Answered:
    """The server answered; `retry_after` is what it asked us to wait."""

    status: int
    retry_after: float | None


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection failed, before or after the request may have reached the server."""

    sent: bool


def pause(
    outcome: Answered | Lost, *, repeatable: bool, attempt: int, jitter: float
) -> float | None:
    """Seconds until the next attempt, or `None` where another one is not safe or not wanted.

    Args:
        outcome: how attempt number `attempt`, counted from 1, ended.
        repeatable: doing it twice is the same as doing it once.
        attempt: how many there were.
        jitter: a random number from 0 to 1, so that many clients do not come back together.
    """
    match outcome:
        case Lost(sent=sent) if attempt < _CONNECTING and (repeatable or not sent):
            return 0.05 * 2.0 ** (attempt - 1) * (1 + jitter)
        # 429 and 503 with a time to wait come from filters in front: nothing was done yet.
        case Answered(status=status, retry_after=seconds) if attempt < _ASKED_TO_WAIT and (
            status in {429, 503} or (repeatable and status in {500, 502, 504})
        ):
            return None if seconds is None else seconds * (1 + jitter / 10)
        case _:
            return None
