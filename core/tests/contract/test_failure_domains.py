from collections import Counter

import pytest
from capelin.api.capi import FailureDomain
from capelin.contract import failure_domains
from capelin.contract.failure_domains import fewest, most
from hypothesis import given
from hypothesis import strategies as st

A = FailureDomain(name="a", control_plane=True, attributes={"rack": "1"})
B = FailureDomain(name="b")
C = FailureDomain(name="c", control_plane=False)


def test_the_list_of_the_newer_generation_keeps_its_order() -> None:
    listed = [{"name": "c", "controlPlane": False}, A.dump(), {"name": "b", "new": 1}]
    assert failure_domains.read(listed) == [C, A, B]


def test_the_map_of_the_older_generation_is_sorted_by_name() -> None:
    mapped = {
        "c": {"controlPlane": False},
        "b": None,
        "a": {"controlPlane": True, "attributes": {"rack": "1"}},
    }
    assert failure_domains.read(mapped) == [A, B, C]


@pytest.mark.parametrize("nothing", [None, [], {}])
def test_there_may_be_none(nothing: object) -> None:
    assert failure_domains.read(nothing) == []


def test_control_planes_go_where_they_are_meant_to() -> None:
    assert failure_domains.for_control_plane([A, B, C]) == ["a"]


def test_the_emptiest_domain_is_chosen() -> None:
    assert fewest(["a", "b", "c"], ["a", "c", "c", "b", "b"]) == "a"


def test_what_is_elsewhere_or_nowhere_does_not_count() -> None:
    assert fewest(["a", "b"], ["a", None, "z", "z", "b", "a"]) == "b"


def test_without_domains_there_is_none_to_choose() -> None:
    assert fewest([], ["a"]) is None
    assert most([], ["a"], ["a"]) is None


def test_different_clusters_begin_in_different_domains() -> None:
    chosen = {fewest(["a", "b", "c"], [], seed=f"cluster-{number}") for number in range(50)}
    assert chosen == {"a", "b", "c"}


def test_one_is_taken_from_where_most_are() -> None:
    assert most(["a", "b"], ["a", "b", "b"], ["a", "b"]) == "b"
    assert most(["a", "b"], ["a", "b", "b"], ["a"]) == "a"
    assert most(["a", "b"], ["a", "b", "b"], ["z", None]) is None


domains = st.lists(st.sampled_from("abcdef"), min_size=1, unique=True)


@given(domains, st.integers(0, 30), st.text())
def test_spreading_is_even_and_does_not_depend_on_the_order_of_domains(
    names: list[str], count: int, seed: str
) -> None:
    placed: list[str] = []
    for _ in range(count):
        chosen = fewest(names, placed, seed=seed)
        assert chosen is not None
        assert fewest(names[::-1], placed, seed=seed) == chosen
        placed.append(chosen)
    counts = Counter(dict.fromkeys(names, 0) | Counter(placed))
    assert max(counts.values()) - min(counts.values()) <= 1


@given(domains, st.integers(1, 20), st.text())
def test_taking_away_goes_back_the_way_of_placing(names: list[str], count: int, seed: str) -> None:
    placed: list[str] = []
    for _ in range(count):
        chosen = fewest(names, placed, seed=seed)
        assert chosen is not None
        placed.append(chosen)
    assert most(names, placed, placed, seed=seed) == placed[-1]
