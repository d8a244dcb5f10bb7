from capelin.client.retries import RateLimiter

from tests.support.clock import MonotonicClock


def test_a_burst_passes_at_once_and_the_rest_at_the_rate() -> None:
    limiter = RateLimiter(qps=10, burst=3, clock=MonotonicClock())
    assert [round(limiter.reserve(), 3) for _ in range(6)] == [0, 0, 0, 0.1, 0.2, 0.3]


def test_tokens_accumulate_up_to_the_burst() -> None:
    clock = MonotonicClock()
    limiter = RateLimiter(qps=10, burst=2, clock=clock)
    for _ in range(4):
        limiter.reserve()
    clock.now += 0.3
    assert round(limiter.reserve(), 3) == 0
    assert round(limiter.reserve(), 3) == 0.1
    clock.now += 3600
    assert [round(limiter.reserve(), 3) for _ in range(3)] == [0, 0, 0.1]
