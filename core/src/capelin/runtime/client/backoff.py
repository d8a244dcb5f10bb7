"""What is not called again yet: blocked objects, cached responses."""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from capelin.client import Clock
from capelin.runtime.catalog import AnyHook
from capelin.runtime.messages import Response, RetryResponse

T = TypeVar("T")

_BLOCKED_SECONDS = 24 * 3600.0
_CACHE_SECONDS = 600.0


class NamespacedName(NamedTuple):
    """The object of a call."""

    namespace: str
    name: str


class TTLCache(Generic[T]):
    """Values that expire."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds, self._clock = seconds, clock
        # In the order of expiry: all stay for the same time.
        self._values: dict[Hashable, tuple[float, T]] = {}

    def get(self, key: Hashable) -> T | None:
        """The value of a key."""
        self._expire()
        found = self._values.get(key)
        return None if found is None else found[1]

    def put(self, key: Hashable, value: T) -> None:
        """Store a value."""
        self._expire()
        self._values.pop(key, None)
        self._values[key] = (self._clock() + self._seconds, value)

    def _expire(self) -> None:
        now = self._clock()
        while self._values and (first := next(iter(self._values))) is not None:
            if self._values[first][0] > now:
                return
            del self._values[first]


def response_cache(clock: Clock) -> TTLCache[Response]:
    """A cache of successful responses for ten minutes."""
    return TTLCache(_CACHE_SECONDS, clock)


class BlockedCalls:
    """Responses that block an object: no handler is called before their time is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._responses: TTLCache[tuple[float, RetryResponse]] = TTLCache(_BLOCKED_SECONDS, clock)

    def add(self, hook: AnyHook, about: NamespacedName, response: Response) -> None:
        """Remember a response if it blocks."""
        if isinstance(response, RetryResponse) and response.retry_after_seconds > 0:
            again = self._clock() + response.retry_after_seconds
            self._responses.put(_key(hook, about), (again, response))

    def current(self, hook: AnyHook, about: NamespacedName) -> Response | None:
        """The response that still blocks, with the seconds that are left."""
        found = self._responses.get(_key(hook, about))
        if found is None or (left := found[0] - self._clock()) <= 0:
            return None
        # 0 would let the caller proceed.
        seconds = max(round(left), 1)
        response, kind = found[1], hook.response_type()
        if isinstance(response, kind):
            return response.model_copy(update={"retry_after_seconds": seconds})
        # It is of another version of the hook; both have these fields.
        return kind(status="Success", message=response.message, retry_after_seconds=seconds)


def _key(hook: AnyHook, about: NamespacedName) -> Hashable:
    # All versions of a hook are one.
    return hook.id.group, hook.id.name, about
