import pytest
from capelin.api.capi import Machine
from capelin.contract import metadata


def test_a_control_plane_machine_has_the_template_s_labels_and_core_s() -> None:
    template = {"team": "a", "cluster.x-k8s.io/cluster-name": "a lie"}
    assert metadata.control_plane_machine_labels(template, cluster="demo", control_plane="cp") == {
        "team": "a",
        "cluster.x-k8s.io/cluster-name": "demo",
        "cluster.x-k8s.io/control-plane": "",
        "cluster.x-k8s.io/control-plane-name": "cp",
    }
    assert template == {"team": "a", "cluster.x-k8s.io/cluster-name": "a lie"}


def test_names_too_long_for_a_label_are_hashed() -> None:
    labels = metadata.control_plane_machine_labels({}, cluster="demo", control_plane="a" * 64)
    assert labels["cluster.x-k8s.io/control-plane-name"] == "hash_2W8PhQ_z"
    assert metadata.pool_machine_labels(cluster="demo", pool="a" * 64) == {
        "cluster.x-k8s.io/cluster-name": "demo",
        "cluster.x-k8s.io/pool-name": "hash_2W8PhQ_z",
    }


SYNCED = {
    "node-role.kubernetes.io/worker": "",
    "node-role.kubernetes.io": "x",
    "node-restriction.kubernetes.io/zone": "a",
    "x.node-restriction.kubernetes.io/zone": "a",
    "node.cluster.x-k8s.io/size": "l",
    "my.node.cluster.x-k8s.io/size": "l",
}
KEPT = {
    "team": "a",
    "x.node-role.kubernetes.io/worker": "",
    "xnode-restriction.kubernetes.io/zone": "a",
    "node.cluster.x-k8s.io.evil/size": "l",
    "cluster.x-k8s.io/cluster-name": "demo",
    "evil/node.cluster.x-k8s.io": "l",
}


def test_only_labels_of_certain_domains_reach_nodes() -> None:
    assert metadata.labels_for_node(SYNCED | KEPT) == SYNCED


def test_only_annotations_of_one_domain_reach_nodes() -> None:
    assert metadata.annotations_for_node(SYNCED | KEPT) == {
        "node.cluster.x-k8s.io/size": "l",
        "my.node.cluster.x-k8s.io/size": "l",
    }


@pytest.mark.parametrize(
    ("label", "filter_", "expected"),
    [(None, "", True), ("a", "", True), ("a", "a", True), ("b", "a", False), (None, "a", False)],
)
def test_a_manager_with_a_filter_looks_after_its_own(
    label: str | None, filter_: str, expected: bool
) -> None:
    machine = Machine.of("m", "default")
    if label is not None:
        machine.metadata.labels = {"cluster.x-k8s.io/watch-filter": label}
    assert metadata.is_watched(machine, filter_) is expected


def test_what_somebody_else_keeps_is_marked() -> None:
    machine = Machine.of("m", "default")
    assert not metadata.is_managed_elsewhere(machine)
    machine.metadata.annotations = {"cluster.x-k8s.io/managed-by": ""}
    assert metadata.is_managed_elsewhere(machine)
