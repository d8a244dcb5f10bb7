import pytest
from capelin.api.capi import Machine
from capelin.contract import machine_pools
from capelin.contract.machine_pools import Sizes, autoscaler_sizes, provider_id_list

LEAST = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
MOST = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"


def test_provider_ids_are_listed_in_one_order() -> None:
    assert provider_id_list(["capelin:///b", "capelin:///a"]) == ["capelin:///a", "capelin:///b"]
    assert provider_id_list([]) == []
    assert provider_id_list(["x" * 512]) == ["x" * 512]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([""], "a provider id has 1 to 512 characters, and this one has 0"),
        (["x" * 513], "a provider id has 1 to 512 characters, and this one has 513"),
        (["b", "a", "b"], "2 instances have the provider id 'b', and core finds"),
        (map(str, range(10001)), "a pool cannot have 10001 instances: the contract ends at 10000"),
    ],
)
def test_provider_ids_that_core_cannot_work_with_are_refused(ids: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        provider_id_list(ids)


def test_ten_thousand_instances_are_allowed() -> None:
    assert len(provider_id_list(map(str, range(10000)))) == 10000


def test_the_autoscaler_s_sizes_are_read() -> None:
    assert autoscaler_sizes({LEAST: "0", MOST: "10"}) == Sizes(0, 10)
    assert autoscaler_sizes({LEAST: "3", MOST: "3"}) == Sizes(3, 3)


@pytest.mark.parametrize("annotations", [{}, {LEAST: "1"}, {MOST: "1"}])
def test_the_autoscaler_leaves_a_pool_alone_without_both_sizes(
    annotations: dict[str, str],
) -> None:
    assert autoscaler_sizes(annotations) is None


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({LEAST: "4", MOST: "3"}, "says 4, which is more than .* says, 3; make the first the"),
        ({LEAST: "-1", MOST: "3"}, "min-size says '-1'; write a number of replicas there"),
        ({LEAST: "1", MOST: "many"}, "max-size says 'many'; write a number of replicas there"),
        ({LEAST: "1", MOST: "٣"}, "max-size says '٣'; write a number of replicas there"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(annotations: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        autoscaler_sizes(annotations)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [({}, False), ({"a": "b"}, False), *[({"v": v}, v != "false") for v in ("", "x", "false")]],
)
def test_replicas_are_somebody_else_s_unless_it_says_false(
    annotations: dict[str, str], expected: bool
) -> None:
    named = {
        "cluster.x-k8s.io/replicas-managed-by" if name == "v" else name: value
        for name, value in annotations.items()
    }
    assert machine_pools.replicas_are_managed_elsewhere(named) is expected


def test_a_machine_can_be_chosen_to_go_first() -> None:
    machine = Machine.of("m", "default")
    assert not machine_pools.is_to_go_first(machine)
    machine.metadata.annotations = {"cluster.x-k8s.io/delete-machine": ""}
    assert machine_pools.is_to_go_first(machine)
