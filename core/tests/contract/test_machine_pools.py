from collections import Counter
from collections.abc import Sequence

import pytest
from capelin.api import OwnerReference
from capelin.api.capi import Machine, MachinePool
from capelin.contract import (
    PAUSED_ANNOTATION,
    emptiest_domain,
    is_miscounted,
    is_to_go_first,
    machine_counts,
    provider_id_list,
)
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


def counted_pool(version: str | None = "v1.34.4", **annotations: str) -> MachinePool:
    """A MachinePool of which core has counted two Machines."""
    return MachinePool.read(
        {
            "metadata": {"name": "p", "uid": "1", "annotations": annotations},
            "status": {
                "readyReplicas": 2,
                "availableReplicas": 2,
                "upToDateReplicas": 2,
                "versions": [{"version": version, "replicas": 2}] if version else [],
            },
        }
    )


ALL_TRUE = ("Ready", "Available", "UpToDate")


def counted_machine(version: str = "v1.34.4", conditions: Sequence[str] = ALL_TRUE) -> Machine:
    now = "2026-01-01T00:00:00Z"
    true = [
        {"type": type_, "status": "True", "reason": type_, "lastTransitionTime": now}
        for type_ in conditions
    ]
    return Machine.read({"spec": {"version": version}, "status": {"conditions": true}})


def counts(pool: MachinePool, *machines: Machine) -> Counter[str]:
    return sum((machine_counts(pool, machine) for machine in machines), Counter[str]())


@pytest.mark.parametrize(
    ("last", "is_wrong"),
    [
        ([], False),
        ([counted_machine("v1.33.13", [])], True),
        ([counted_machine()], True),
    ],
)
def test_deleted_machine_that_core_still_counts_is_detected(
    last: list[Machine], *, is_wrong: bool
) -> None:
    pool = counted_pool()
    machines = [counted_machine(), counted_machine(), *last]
    assert is_miscounted(pool, counts(pool, *machines)) is is_wrong
    paused = counted_pool(**{PAUSED_ANNOTATION: ""})
    assert not is_miscounted(paused, counts(paused, *machines))


def test_machine_that_has_become_ready_since_core_counted_is_detected() -> None:
    pool = counted_pool()
    starting = counted_machine(conditions=["UpToDate"])
    assert is_miscounted(pool, counts(pool, counted_machine(), starting))


def test_core_without_versions_and_machines_of_others_are_ignored() -> None:
    old = counted_pool(version=None)
    assert not is_miscounted(old, counts(old, counted_machine(), counted_machine()))
    pool, other = counted_pool(), counted_machine()
    other.metadata.owner_references = [
        OwnerReference(api_version="v1", kind="Other", name="o", uid="2", controller=True)
    ]
    assert not is_miscounted(pool, counts(pool, counted_machine(), counted_machine(), other))


def test_version_of_the_kubelet_counts_if_it_is_known() -> None:
    status = {"nodeInfo": {"kubeletVersion": "v1.33.13"}}
    running = Machine.read({"status": status, "spec": {"version": "v1.34.4"}})
    assert machine_counts(counted_pool(), running) == Counter({"v1.33.13": 1})
    assert machine_counts(counted_pool(), counted_machine())["v1.34.4"] == 1


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
