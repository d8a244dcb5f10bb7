import pytest
from capelin.api.capi import Cluster, ClusterSpec, MachinePool
from capelin.contract.conditions import ConditionSpec
from capelin.contract.pausing import is_paused, paused

ANNOTATED = "MachinePool has the cluster.x-k8s.io/paused annotation"
CLUSTER = "Cluster spec.paused is set to true"


def pool(**annotations: str) -> MachinePool:
    found = MachinePool.of("pool", "default")
    found.metadata.annotations = annotations
    return found


def cluster(*, paused: bool | None) -> Cluster:
    return Cluster.of("demo", "default", spec=ClusterSpec(paused=paused))


@pytest.mark.parametrize("value", ["", "true", "false"])
def test_the_annotation_pauses_whatever_its_value(value: str) -> None:
    obj = pool(**{"cluster.x-k8s.io/paused": value})
    assert paused(obj, None) == ConditionSpec("Paused", "True", "Paused", ANNOTATED)
    assert is_paused(obj, cluster(paused=False))


def test_the_cluster_pauses_what_is_part_of_it() -> None:
    assert paused(pool(), cluster(paused=True)) == ConditionSpec(
        "Paused", "True", "Paused", CLUSTER
    )
    assert is_paused(pool(), cluster(paused=True))


def test_both_are_named() -> None:
    obj = pool(**{"cluster.x-k8s.io/paused": ""})
    assert paused(obj, cluster(paused=True)).message == f"{CLUSTER}, {ANNOTATED}"


@pytest.mark.parametrize("of", [None, cluster(paused=None), cluster(paused=False)])
def test_nothing_else_pauses(of: Cluster | None) -> None:
    obj = pool(other="x")
    assert paused(obj, of) == ConditionSpec("Paused", "False", "NotPaused", "")
    assert not is_paused(obj, of)
