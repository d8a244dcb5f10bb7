"""What is not called again yet: failing servers, blocked objects, cached responses."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from capelin.runtime.catalog import AnyHook
from capelin.runtime.messages import Response, RetryResponse

Clock = Callable[[], float]
T = TypeVar("T")

_BLOCKED_SECONDS = 24 * 3600.0
_CACHE_SECONDS = 600.0


class NamespacedName(NamedTuple):
    """The object of a call."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long calls pause after a failure: twice as long each time."""

    first_seconds: float = 0.5
    longest_seconds: float = 60.0

    def seconds(self, failures: int) -> float:
        """The pause after so many failures in a row."""
        # A larger power would overflow.
        return min(self.first_seconds * 2.0 ** min(failures - 1, 63), self.longest_seconds)


@dataclass(slots=True)
class _Pause(Generic[T]):
    until: float
    failures: int
    error: T


class CircuitBreaker(Generic[T]):
    """Pauses calls to servers and handlers that failed, and remembers their last error."""

    def __init__(self, backoff: Backoff, clock: Clock) -> None:
        self._backoff, self._clock = backoff, clock
        self._pauses: dict[Hashable, _Pause[T]] = {}

    def error(self, target: Hashable) -> T | None:
        """The last error, while calls are paused."""
        pause = self._pauses.get(target)
        return pause.error if pause is not None and self._clock() < pause.until else None

    def failed(self, target: Hashable, error: T) -> None:
        """Pause calls. Calls that failed at the same time count once."""
        now = self._clock()
        pause = self._pauses.get(target)
        if pause is not None and now < pause.until:
            return
        failures = 1 if pause is None else pause.failures + 1
        self._pauses[target] = _Pause(now + self._backoff.seconds(failures), failures, error)

    def succeeded(self, *targets: Hashable) -> None:
        """Forget the failures of these."""
        for target in targets:
            self._pauses.pop(target, None)


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
