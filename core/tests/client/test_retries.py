import pytest
from capelin.client.retries import Answered, ConnectionLost, retry_delay


def test_a_safe_lost_request_is_repeated_with_growing_pauses() -> None:
    pauses = [
        retry_delay(ConnectionLost(sent=True), repeatable=True, attempt=attempt, jitter=0)
        for attempt in (1, 2, 3, 4, 5)
    ]
    assert pauses == [0.05, 0.1, 0.2, 0.4, None]


def test_an_unsafe_lost_request_is_not_repeated() -> None:
    assert retry_delay(ConnectionLost(sent=True), repeatable=False, attempt=1, jitter=0) is None


def test_an_unsent_request_is_always_repeated() -> None:
    assert retry_delay(ConnectionLost(sent=False), repeatable=False, attempt=1, jitter=0) == 0.05


def test_jitter_at_most_doubles_a_pause() -> None:
    assert retry_delay(ConnectionLost(sent=False), repeatable=True, attempt=1, jitter=1) == 0.1


@pytest.mark.parametrize("status", [429, 503])
def test_an_overloaded_server_sets_the_pause(status: int) -> None:
    refusal = Answered(status, retry_after=2)
    assert retry_delay(refusal, repeatable=False, attempt=1, jitter=0) == 2
    assert retry_delay(refusal, repeatable=False, attempt=1, jitter=1) == pytest.approx(2.2)


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_server_error_repeats_only_safe_requests(status: int) -> None:
    failure = Answered(status, retry_after=1)
    assert retry_delay(failure, repeatable=True, attempt=1, jitter=0) == 1
    assert retry_delay(failure, repeatable=False, attempt=1, jitter=0) is None


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_error_without_retry_after_is_final(status: int) -> None:
    assert retry_delay(Answered(status, None), repeatable=True, attempt=1, jitter=0) is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422])
def test_client_errors_are_final(status: int) -> None:
    assert retry_delay(Answered(status, 1), repeatable=True, attempt=1, jitter=0) is None


def test_the_client_stops_after_ten_attempts() -> None:
    assert retry_delay(Answered(429, 1), repeatable=True, attempt=9, jitter=0) == 1
    assert retry_delay(Answered(429, 1), repeatable=True, attempt=10, jitter=0) is None
