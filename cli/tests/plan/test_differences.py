"""Field-by-field differences."""

from typing import Any

from capelin_cli.plan.differences import differences


def paths(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    found = differences({"metadata": {}, "spec": before}, {"metadata": {}, "spec": after})
    return [(each.path, each.before, each.after) for each in found]


def test_equal_objects() -> None:
    assert paths({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}) == []


def test_nested_fields() -> None:
    assert paths({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "d": 4}}) == [
        ("spec.a.b", 1, 3),
        ("spec.a.c", 2, None),
        ("spec.a.d", None, 4),
    ]


def test_items_with_names_compare_by_name() -> None:
    before = [{"name": "a", "value": 1}, {"name": "b", "value": 2}]
    after = [{"name": "b", "value": 3}, {"name": "a", "value": 1}]
    assert paths({"list": before}, {"list": after}) == [("spec.list[b].value", 2, 3)]


def test_a_new_item_is_one_change() -> None:
    old, new = {"name": "a", "value": 1}, {"name": "b", "value": 2}
    assert paths({"list": [old]}, {"list": [old, new]}) == [("spec.list[b]", None, new)]
    assert paths({"list": [old, new]}, {"list": [new]}) == [("spec.list[a]", old, None)]


def test_other_lists_compare_whole() -> None:
    assert paths({"list": [1, 2]}, {"list": [1, 3]}) == [("spec.list", [1, 2], [1, 3])]


def test_an_empty_field_equals_a_missing_one() -> None:
    assert paths({"a": {}, "b": None}, {"c": []}) == []


def test_fields_that_providers_fill_in_do_not_count() -> None:
    assert paths({}, {"providerID": "x", "providerIDList": ["x"]}) == []
    old, new = (
        {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": token}}}}
        for token in ("abc.1", "abc.2")
    )
    assert paths(old, new) == []


def test_annotations_that_controllers_use_for_themselves_do_not_count() -> None:
    internal = (
        "capelin.cluster.x-k8s.io/recount-requested-at",
        "machinedeployment.clusters.x-k8s.io/revision",
        "kubectl.kubernetes.io/last-applied-configuration",
    )
    annotations = dict.fromkeys((*internal, "team"), "1")
    found = differences({"metadata": {}}, {"metadata": {"annotations": annotations}})
    assert [each.path for each in found] == ["metadata.annotations.team"]


def test_names_become_roles() -> None:
    before: Any = {"metadata": {}, "spec": {"ref": {"name": "old-1"}}}
    after: Any = {"metadata": {}, "spec": {"ref": {"name": "new-2"}}}
    words = {"before": {"old-1": "<template>"}, "after": {"new-2": "<template>"}}
    assert differences(before, after, words) == []
    assert [each.path for each in differences(before, after)] == ["spec.ref.name"]
