"""What is not asked again yet: who is in trouble, what holds back, answers that are kept."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from capelin.runtime.catalog import AnyHook
from capelin.runtime.messages import Response, RetryResponse

Clock = Callable[[], float]
T = TypeVar("T")

_BLOCKED_SECONDS = 24 * 3600.0
_KEPT_SECONDS = 600.0


class About(NamedTuple):
    """The object that a call is about."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long who brought no answer is left alone: twice as long each time."""

    first_seconds: float = 0.5
    longest_seconds: float = 60.0

    def seconds(self, failures: int) -> float:
        """How long after so many calls without an answer, one after the other."""
        # The power of a large number would be no number any more.
        return min(self.first_seconds * 2.0 ** min(failures - 1, 63), self.longest_seconds)


@dataclass(slots=True)
class _Rest(Generic[T]):
    until: float
    failures: int
    why: T


class Resting(Generic[T]):
    """The servers and handlers that are left alone, and what was wrong with each."""

    def __init__(self, backoff: Backoff, clock: Clock) -> None:
        self._backoff, self._clock = backoff, clock
        self._rests: dict[Hashable, _Rest[T]] = {}

    def why(self, whom: Hashable) -> T | None:
        """What was wrong last, if it is too early to ask again."""
        rest = self._rests.get(whom)
        return rest.why if rest is not None and self._clock() < rest.until else None

    def failed(self, whom: Hashable, why: T) -> None:
        """Leave it alone. Calls that failed at the same time count once."""
        now = self._clock()
        rest = self._rests.get(whom)
        if rest is not None and now < rest.until:
            return
        failures = 1 if rest is None else rest.failures + 1
        self._rests[whom] = _Rest(now + self._backoff.seconds(failures), failures, why)

    def answered(self, *who: Hashable) -> None:
        """They are well again."""
        for one in who:
            self._rests.pop(one, None)


class Store(Generic[T]):
    """Values that are forgotten after a while."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds, self._clock = seconds, clock
        # In the order of their ends: all stay for the same time.
        self._values: dict[Hashable, tuple[float, T]] = {}

    def get(self, key: Hashable) -> T | None:
        """What is there under the key."""
        self._sweep()
        found = self._values.get(key)
        return None if found is None else found[1]

    def put(self, key: Hashable, value: T) -> None:
        """Keep it."""
        self._sweep()
        self._values.pop(key, None)
        self._values[key] = (self._clock() + self._seconds, value)

    def _sweep(self) -> None:
        now = self._clock()
        while self._values and (first := next(iter(self._values))) is not None:
            if self._values[first][0] > now:
                return
            del self._values[first]


def kept_answers(clock: Clock) -> Store[Response]:
    """A store of successful answers, which stay for ten minutes."""
    return Store(_KEPT_SECONDS, clock)


class Blocked:
    """Answers that hold an object back: nobody is asked before it is time to."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: Store[tuple[float, RetryResponse]] = Store(_BLOCKED_SECONDS, clock)

    def note(self, hook: AnyHook, about: About, response: Response) -> None:
        """Remember an answer if it holds back."""
        if isinstance(response, RetryResponse) and response.retry_after_seconds > 0:
            again = self._clock() + response.retry_after_seconds
            self._answers.put(_key(hook, about), (again, response))

    def still(self, hook: AnyHook, about: About) -> Response | None:
        """The answer that still holds back, with the seconds that are left of it."""
        found = self._answers.get(_key(hook, about))
        if found is None or (left := found[0] - self._clock()) <= 0:
            return None
        # Less than half a second would read as nothing to wait for.
        seconds = max(round(left), 1)
        response, kind = found[1], hook.response_type()
        if isinstance(response, kind):
            return response.model_copy(update={"retry_after_seconds": seconds})
        # It was given for another version of the hook: what the two have in common is this.
        return kind(status="Success", message=response.message, retry_after_seconds=seconds)


def _key(hook: AnyHook, about: About) -> Hashable:
    # All versions of a hook are one.
    return hook.id.group, hook.id.name, about
