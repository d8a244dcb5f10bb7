from collections import Counter

import pytest
from capelin.api.capi import Machine
from capelin.contract import emptiest_domain, is_to_go_first, provider_id_list
from hypothesis import given
from hypothesis import strategies as st

LEAST = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
MOST = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"


def test_provider_ids_are_sorted() -> None:
    assert provider_id_list(["capelin:///b", "capelin:///a"]) == ["capelin:///a", "capelin:///b"]
    assert provider_id_list([]) == []
    assert provider_id_list(["x" * 512]) == ["x" * 512]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([""], "a provider id has 1 to 512 characters, and this one has 0"),
        (["x" * 513], "a provider id has 1 to 512 characters, and this one has 513"),
        (["b", "a", "b"], "2 instances have the provider id 'b', and core finds"),
        (
            map(str, range(10001)),
            "a pool cannot have 10001 instances, because the contract allows at most 10000",
        ),
    ],
)
def test_invalid_provider_ids_fail(ids: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        provider_id_list(ids)


def test_ten_thousand_instances_are_allowed() -> None:
    assert len(provider_id_list(map(str, range(10000)))) == 10000


def test_the_delete_annotation_selects_a_machine_for_deletion() -> None:
    machine = Machine.of("m", "default")
    assert not is_to_go_first(machine)
    machine.metadata.annotations = {"cluster.x-k8s.io/delete-machine": ""}
    assert is_to_go_first(machine)


def test_emptiest_domain_returns_the_least_used_domain() -> None:
    assert emptiest_domain(["a", "b", "c"], ["a", "c", "c", "b", "b"]) == "a"


def test_machines_in_unknown_or_no_domains_do_not_count() -> None:
    assert emptiest_domain(["a", "b"], ["a", None, "z", "z", "b", "a"]) == "b"


def test_emptiest_domain_returns_none_without_domains() -> None:
    assert emptiest_domain([], ["a"]) is None


def test_different_clusters_start_in_different_domains() -> None:
    chosen = {
        emptiest_domain(["a", "b", "c"], [], seed=f"cluster-{number}") for number in range(50)
    }
    assert chosen == {"a", "b", "c"}


domains = st.lists(st.sampled_from("abcdef"), min_size=1, unique=True)


@given(domains, st.integers(0, 30), st.text())
def test_machines_spread_evenly(names: list[str], count: int, seed: str) -> None:
    placed: list[str] = []
    for _ in range(count):
        chosen = emptiest_domain(names, placed, seed=seed)
        assert chosen is not None
        assert emptiest_domain(names[::-1], placed, seed=seed) == chosen
        placed.append(chosen)
    counts = Counter(dict.fromkeys(names, 0) | Counter(placed))
    assert max(counts.values()) - min(counts.values()) <= 1
