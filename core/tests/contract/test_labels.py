import pytest
from capelin.api.capi import Machine
from capelin.contract import (
    ProviderType,
    is_managed_elsewhere,
    label_value,
    pool_machine_labels,
    provider_label,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", ""),
        ("pool-0", "pool-0"),
        ("a.b_C-1", "a.b_C-1"),
        ("a" * 63, "a" * 63),
        # Results of Cluster API's own function.
        ("a" * 64, "hash_2W8PhQ_z"),
        ("invalid/name", "hash_NYbuzg_z"),
        ("-x", "hash_S81gwA_z"),
    ],
)
def test_label_value_matches_cluster_api(name: str, expected: str) -> None:
    assert label_value(name) == expected


@given(st.text())
def test_every_name_becomes_a_valid_label_value(name: str) -> None:
    value = label_value(name)
    assert len(value) <= 63
    assert label_value(value) == value


@pytest.mark.parametrize(
    ("type_", "label"),
    [
        ("CoreProvider", "capelin"),
        ("BootstrapProvider", "bootstrap-capelin"),
        ("ControlPlaneProvider", "control-plane-capelin"),
        ("InfrastructureProvider", "infrastructure-capelin"),
        ("IPAMProvider", "ipam-capelin"),
        ("RuntimeExtensionProvider", "runtime-extension-capelin"),
        ("AddonProvider", "addon-capelin"),
    ],
)
def test_provider_labels_match_those_of_clusterctl(type_: ProviderType, label: str) -> None:
    assert provider_label(type_, "capelin") == label


def test_names_too_long_for_a_label_are_hashed() -> None:
    assert pool_machine_labels(cluster="demo", pool="a" * 64) == {
        "cluster.x-k8s.io/cluster-name": "demo",
        "cluster.x-k8s.io/pool-name": "hash_2W8PhQ_z",
    }


def test_the_managed_by_annotation_marks_external_management() -> None:
    machine = Machine.of("m", "default")
    assert not is_managed_elsewhere(machine)
    machine.metadata.annotations = {"cluster.x-k8s.io/managed-by": ""}
    assert is_managed_elsewhere(machine)
