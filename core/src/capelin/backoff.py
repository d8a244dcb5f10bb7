"""Exponential backoff.

Libraries such as `stamina` and `tenacity` call a function again. Here, the state of a queue, watch
or supervisor counts the failures, and only the delay is missing.
"""

_MAX_DOUBLINGS = 63


def exponential_delay(failures: int, *, first: float, longest: float, factor: float = 2.0) -> float:
    """Seconds to wait after this many failures in a row. No failure means no delay."""
    if failures < 1:
        return 0.0
    # More doublings overflow a float.
    return min(longest, first * factor ** min(failures - 1, _MAX_DOUBLINGS))
