"""Changes from files and options."""

import json
from pathlib import Path
from typing import Any

import pytest
from capelin.errors import InvalidInputError
from capelin_cli.clusters.topology import ScaleOptions
from capelin_cli.plan.changes import applied, changed_cluster, read_file, read_manifests
from capelin_cli.plan.differences import LAST_APPLIED

MANIFEST = {"apiVersion": "v1", "kind": "Foo", "metadata": {"name": "a"}}


def test_a_file_with_several_objects() -> None:
    listed = {"kind": "List", "items": [MANIFEST, {**MANIFEST, "kind": "ExtensionConfig"}]}
    text = f"{json.dumps(MANIFEST)}\n---\n{json.dumps(listed)}\n---\n"
    found = read_manifests(text, "x.yaml", "shop")
    assert [each["kind"] for each in found] == ["Foo", "Foo", "ExtensionConfig"]
    assert [each["metadata"].get("namespace") for each in found] == ["shop", "shop", None]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "It has no object."),
        ("a: [", "It is neither YAML nor JSON"),
        ("kind: Foo", "An object in it has no apiVersion, no kind or no name."),
        ("- 1", "An object in it has no apiVersion, no kind or no name."),
        ("text", "An object in it has no apiVersion, no kind or no name."),
        (
            json.dumps(MANIFEST).replace(
                "{", '{"spec": ' + '{"a": ' * 900 + "1" + "}" * 900 + ",", 1
            ),
            "An object in it has more than 100 levels of fields.",
        ),
    ],
)
def test_invalid_files(text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_manifests(text, "x.yaml", "shop")
    assert caught.value.reason.startswith(reason)


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_file(tmp_path / "missing.yaml", "shop")


def live(spec: Any, previous: Any = None) -> Any:
    annotations = {} if previous is None else {LAST_APPLIED: json.dumps({"spec": previous})}
    return {**MANIFEST, "metadata": {"name": "a", "annotations": annotations}, "spec": spec}


def test_apply_keeps_the_fields_of_others() -> None:
    found = applied(live({"a": 1, "b": 2}), {**MANIFEST, "spec": {"a": 3}})
    assert found["spec"] == {"a": 3, "b": 2}


def test_apply_removes_fields_that_only_the_previous_manifest_had() -> None:
    before = live({"a": 1, "b": {"c": 2, "d": 3}, "e": 4}, {"a": 1, "b": {"c": 2}})
    found = applied(before, {**MANIFEST, "spec": {"b": {"x": 1}}})
    assert found["spec"] == {"b": {"d": 3, "x": 1}, "e": 4}


def test_a_new_object() -> None:
    assert applied(None, MANIFEST) == MANIFEST


def test_options_of_a_cluster() -> None:
    topology = {
        "classRef": {"name": "c"},
        "version": "v1.33.1",
        "controlPlane": {},
        "workers": {"machineDeployments": [{"class": "w", "name": "md", "replicas": 1}]},
        "variables": [{"name": "x", "value": 1}, {"name": "y", "value": 1}],
    }
    cluster = {**MANIFEST, "spec": {"topology": topology}}
    scale = ScaleOptions(workers=4, control_plane_replicas=3)
    found = changed_cluster(cluster, version="v1.34.1", scale=scale, variables={"x": 2})
    changed = found["spec"]["topology"]
    assert changed["version"] == "v1.34.1"
    assert changed["controlPlane"] == {"replicas": 3}
    assert changed["workers"]["machineDeployments"][0]["replicas"] == 4
    assert changed["variables"] == [{"name": "y", "value": 1}, {"name": "x", "value": 2}]
    assert topology["version"] == "v1.33.1"
