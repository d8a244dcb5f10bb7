from capelin.contract.replicas import counters, selector
from hypothesis import given
from hypothesis import strategies as st

numbers = st.integers(0, 20)


def test_replicas_are_counted_for_both_generations() -> None:
    assert counters(5, existing=4, ready=3, available=2, up_to_date=1) == {
        "replicas": 4,
        "ready_replicas": 3,
        "available_replicas": 2,
        "up_to_date_replicas": 1,
        "updated_replicas": 1,
        "unavailable_replicas": 3,
    }


@given(desired=numbers, available=numbers)
def test_core_finds_the_same_number_available_in_either_generation(
    desired: int, available: int
) -> None:
    fields = counters(desired, existing=20, ready=20, available=available, up_to_date=0)
    by_subtraction = max(0, desired - fields["unavailable_replicas"])
    assert by_subtraction == min(desired, fields["available_replicas"])


def test_a_selector_is_written_in_one_order() -> None:
    assert selector({"b": "2", "a": "1", "c": ""}) == "a=1,b=2,c="
