"""The topology of clusters that are created and changed."""

from dataclasses import replace
from typing import Any

import pytest
from capelin.api.capi import Cluster, ClusterClass
from capelin.errors import InvalidInputError
from capelin_cli.clusters.demo import demo_class
from capelin_cli.clusters.topology import (
    ClusterOptions,
    ScaleOptions,
    new_cluster,
    parse_variables,
    patch_text,
    scale_patch,
    upgrade_patch,
)

OPTIONS = ClusterOptions(workers=3)


def cluster_class(**workers: list[dict[str, str]]) -> ClusterClass:
    return ClusterClass.read({"metadata": {"name": "capelin"}, "spec": {"workers": workers}})


def cluster(**rest: Any) -> Cluster:
    return Cluster.read({"metadata": {"name": "demo", "generation": 2}, **rest})


def topology(**workers: list[dict[str, Any]]) -> dict[str, Any]:
    return {"spec": {"topology": {"version": "v1.33.0", "workers": workers}}}


@pytest.mark.parametrize(
    ("workers", "kind"),
    [
        ({"machinePools": [{"class": "small"}, {"class": "big"}]}, "machinePools"),
        ({"machineDeployments": [{"class": "small"}]}, "machineDeployments"),
        (
            {"machineDeployments": [{"class": "other"}], "machinePools": [{"class": "small"}]},
            "machinePools",
        ),
    ],
)
def test_workers_follow_the_class(workers: dict[str, list[dict[str, str]]], kind: str) -> None:
    made = new_cluster("demo", "default", "v1.34.4", OPTIONS, cluster_class(**workers))
    assert made["spec"]["topology"] == {
        "classRef": {"name": "capelin"},
        "version": "v1.34.4",
        "controlPlane": {"replicas": 1},
        "workers": {kind: [{"class": "small", "name": "workers", "replicas": 3}]},
    }


def test_a_class_without_workers_allows_only_clusters_without_workers() -> None:
    with pytest.raises(InvalidInputError, match="has no workers"):
        new_cluster("demo", "default", "v1.34.4", OPTIONS, cluster_class())
    alone = ClusterOptions(workers=0)
    made = new_cluster("demo", "default", "v1.34.4", alone, cluster_class())
    assert "workers" not in made["spec"]["topology"]


@pytest.mark.parametrize("name", ["", "Demo", "a_b", "-a", "a" * 64])
def test_an_invalid_cluster_name_is_rejected(name: str) -> None:
    options = ClusterOptions(workers=0)
    with pytest.raises(InvalidInputError, match="cannot be the name of a cluster"):
        new_cluster(name, "default", "v1.34.4", options, cluster_class())


def test_an_upgrade_changes_only_the_version() -> None:
    assert upgrade_patch("v1.34.0") == [
        {"op": "replace", "path": "/spec/topology/version", "value": "v1.34.0"}
    ]


def test_scaling_changes_only_the_named_pool() -> None:
    pools = [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 1}]
    found = scale_patch(
        cluster(**topology(machinePools=pools)),
        ScaleOptions(workers=5, pool="b", control_plane_replicas=3),
    )
    assert found == [
        {"op": "add", "path": "/spec/topology/controlPlane/replicas", "value": 3},
        {"op": "test", "path": "/spec/topology/workers/machinePools/1/name", "value": "b"},
        {"op": "add", "path": "/spec/topology/workers/machinePools/1/replicas", "value": 5},
    ]


@pytest.mark.parametrize(("pool", "what"), [(None, "has several pools"), ("c", "has no pool c")])
def test_scaling_needs_a_pool_if_several_exist(pool: str | None, what: str) -> None:
    workers = topology(machinePools=[{"name": "a"}], machineDeployments=[{"name": "b"}])
    with pytest.raises(InvalidInputError, match=what) as caught:
        scale_patch(cluster(**workers), ScaleOptions(workers=5, pool=pool))
    assert caught.value.reason == "Its pools are: a, b."


def test_a_cluster_without_a_class_cannot_be_scaled() -> None:
    with pytest.raises(InvalidInputError, match="does not use a ClusterClass"):
        scale_patch(cluster(spec={}), ScaleOptions(workers=5, pool=None))


def test_variables_are_set_by_name_and_field() -> None:
    texts = ["etcdReplicas=3", "machines.dies=20", "machines.flaps=5", "motto=a=b", "on=true"]
    assert parse_variables(texts) == {
        "etcdReplicas": 3,
        "machines": {"dies": 20, "flaps": 5},
        "motto": "a=b",
        "on": True,
    }


@pytest.mark.parametrize("texts", [["a"], ["=1"], ["a.=1"], ["a=1", "a.b=2"], ["a=["]])
def test_an_invalid_variable_option_is_rejected(texts: list[str]) -> None:
    with pytest.raises(InvalidInputError, match="sets no variable"):
        parse_variables(texts)


def test_an_unknown_variable_is_rejected_with_the_known_ones() -> None:
    options = replace(OPTIONS, variables={"machines": {"dies": 20}})
    made = new_cluster("demo", "default", "v1.34.4", options, demo_class())
    assert made["spec"]["topology"]["variables"] == [{"name": "machines", "value": {"dies": 20}}]
    wrong = replace(OPTIONS, variables={"motto": "x"})
    with pytest.raises(
        InvalidInputError,
        match="Its variables: backend, containers, encryption, etcdReplicas, exposure,"
        " konnectivity, machines",
    ):
        new_cluster("demo", "default", "v1.34.4", wrong, demo_class())


def test_a_dry_run_prints_only_the_patch() -> None:
    made = Cluster.read({"metadata": {"name": "demo", "namespace": "team", "uid": "1"}})
    text = patch_text(made, upgrade_patch("v1.35.0"))
    first, *rest = text.splitlines()
    assert first == (
        "# kubectl patch cluster demo -n team --type=json -p "
        """'[{"op":"replace","path":"/spec/topology/version","value":"v1.35.0"}]'"""
    )
    assert rest == ["- op: replace", "  path: /spec/topology/version", "  value: v1.35.0"]
