"""The topology of clusters that are created, changed, upgraded and rejected."""

from dataclasses import replace
from typing import Any

import pytest
from capelin.api.capi import Cluster, ClusterClass
from capelin.client import ApiError, Forbidden, Invalid
from capelin.errors import InvalidInputError
from capelin_cli.clusters.demo import demo_class
from capelin_cli.clusters.topology import (
    ClusterOptions,
    ScaleOptions,
    UpgradePlan,
    describe_schema,
    new_cluster,
    parse_variables,
    patch_text,
    plan_upgrade,
    rejected_cluster,
    scale_patch,
    upgrade_patch,
)
from capelin_cli.status.cluster_tree import ClusterGraph

from cli.tests.status.test_readiness import GOOD, condition, control_plane, observed, pool

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


KNOWN = ("v1.33.13", "v1.34.4", "v1.35.4")
DESIRED = "v1.34.4"


def found(
    running: str = DESIRED, *workers: str, topology: dict[str, Any] | None = None
) -> ClusterGraph:
    """A cluster whose topology has v1.34.4."""
    conditions = GOOD if topology is None else (topology, GOOD[1])
    running_one = control_plane(3, 3, version=running)
    return ClusterGraph(observed(*conditions), None, running_one, [pool(3, 3, *workers)])


def plan(requested: str | None, cluster: ClusterGraph) -> UpgradePlan:
    return plan_upgrade(requested, DESIRED, cluster, KNOWN)


@pytest.mark.parametrize("requested", ["v1.34.4", "1.34"])
def test_a_running_version_needs_no_action(requested: str) -> None:
    assert plan(requested, found()) == UpgradePlan(DESIRED, "Nothing")


@pytest.mark.parametrize(
    "cluster",
    [
        found("v1.33.13"),
        found(DESIRED, DESIRED, "v1.33.13"),
        # All of it runs the version, and a hook after the upgrade waits.
        found(
            topology={
                **condition("TopologyReconciled", "False"),
                "message": "Cluster is upgrading to v1.34.4\n  * Following hooks are blocking "
                "upgrade: AfterClusterUpgrade: tests run",
            }
        ),
    ],
)
@pytest.mark.parametrize("requested", ["1.34", None])
def test_waits_for_a_started_upgrade(requested: str | None, cluster: ClusterGraph) -> None:
    assert plan(requested, cluster) == UpgradePlan(DESIRED, "Wait")


def test_another_version_is_sent() -> None:
    assert plan("1.35", found()) == UpgradePlan("v1.35.4", "Send")
    assert plan(None, found()) == UpgradePlan("v1.35.4", "Send")


@pytest.mark.parametrize("requested", ["v1.35.4", "v1.33.13"])
def test_another_version_waits_for_the_running_upgrade(requested: str) -> None:
    with pytest.raises(InvalidInputError, match=r"is being upgraded to v1\.34\.4") as caught:
        plan(requested, found("v1.33.13"))
    assert "capelin wait" in caught.value.hint


def test_a_cluster_without_known_versions_is_judged_by_its_readiness() -> None:
    assert plan("1.34", ClusterGraph(observed(*GOOD))) == UpgradePlan(DESIRED, "Nothing")
    assert plan("1.34", ClusterGraph(observed())) == UpgradePlan(DESIRED, "Wait")


def test_does_not_wait_for_a_paused_cluster_that_runs_the_version() -> None:
    paused = condition("TopologyReconciled", "False")
    assert plan("1.34", found(topology=paused)) == UpgradePlan(DESIRED, "Nothing")


def invalid(*causes: tuple[str, str], message: str = "refused") -> ApiError:
    details = {"causes": [{"field": field, "message": text} for field, text in causes]}
    return Invalid(422, "Invalid", message, details)


def test_an_invalid_variable_is_reported_with_its_valid_values() -> None:
    value = r'"{\"dies\":\"x\"}"'
    message = f'Invalid value: {value}: dies in body must be of type integer: "string"'
    cause = ("spec.topology.variables[machines].value.dies", message)
    error = rejected_cluster(invalid(cause), "demo", demo_class())
    assert isinstance(error, InvalidInputError)
    assert error.exit_code == 2
    assert error.message == "Variable machines.dies of cluster demo has an invalid value."
    assert error.reason == 'machines.dies: dies in body must be of type integer: "string".'
    assert error.hint == "machines.dies takes an integer from 0 to 100."


def test_a_rejected_choice_is_reported_with_its_values() -> None:
    cause = (
        "spec.topology.variables[backend].value",
        'Unsupported value: "\\"Pod\\"": supported values: "Processes", "Pods"',
    )
    error = rejected_cluster(invalid(cause), "demo", demo_class())
    assert isinstance(error, InvalidInputError)
    assert error.message == "Variable backend of cluster demo has an invalid value."
    assert error.reason == 'backend: supported values: "Processes", "Pods".'
    assert error.hint == "backend takes one of Processes, Pods."


def test_another_invalid_field_keeps_its_path() -> None:
    cause = ("spec.topology.version", 'Invalid value: "v1.33.0": version cannot be decreased')
    error = rejected_cluster(invalid(cause), "demo")
    assert isinstance(error, InvalidInputError)
    assert error.message == "Cluster demo is not valid."
    assert error.reason == "spec.topology.version: version cannot be decreased."


def test_a_rejection_without_causes_keeps_its_message() -> None:
    denied = 'admission webhook "x.cluster.x-k8s.io" denied the request: too many nodes'
    error = rejected_cluster(invalid(message=denied), "demo")
    assert isinstance(error, InvalidInputError)
    assert error.reason == "too many nodes"


def test_other_errors_are_unchanged() -> None:
    forbidden = Forbidden(403, "Forbidden", "you may not")
    assert rejected_cluster(forbidden, "demo") is forbidden


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "enum": ["a", "b"]}, "one of a, b"),
        ({"type": "integer", "minimum": 1}, "an integer of at least 1"),
        ({"type": "number", "maximum": 2}, "a number of at most 2"),
        ({"type": "string", "pattern": "^v"}, "a string that matches ^v"),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, "an object with the fields a, b"),
        ({"type": "boolean"}, "true or false"),
        ({"x-kubernetes-preserve-unknown-fields": True}, ""),
    ],
)
def test_schemas_are_described(schema: dict[str, Any], text: str) -> None:
    assert describe_schema(schema) == text
