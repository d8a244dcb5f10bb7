from copy import deepcopy
from typing import Any

import pytest
from capelin.runtime.topology.draft import Draft, UnexpectedTemplateError

DOCUMENT: dict[str, Any] = {"a": {"b": {"c": 1}, "null": None, "list": [{"d": 1}]}, "e": True}


def test_changes_of_all_parts_are_steps_and_the_original_stays() -> None:
    original = deepcopy(DOCUMENT)
    draft = Draft(original)
    draft.mapping(("a", "b"))["c"] = 1.0
    draft.mapping(("a", "null", "new"))["x"] = []
    draft.sequence(("a", "list"))[0]["d"] = 2
    draft.sequence(("f", "g")).append("h")
    draft.document["e"] = 1
    assert original == DOCUMENT
    assert draft.json_patch() == [
        {"op": "replace", "path": "/a/b/c", "value": 1.0},
        {"op": "replace", "path": "/a/list/0/d", "value": 2},
        {"op": "replace", "path": "/a/null", "value": {"new": {"x": []}}},
        {"op": "replace", "path": "/e", "value": 1},
        {"op": "add", "path": "/f", "value": {"g": ["h"]}},
    ]


def test_a_part_is_the_same_object_again() -> None:
    draft = Draft(DOCUMENT)
    assert draft.mapping(("a", "b")) is draft.mapping(("a",))["b"]
    assert draft.json_patch() == []


@pytest.mark.parametrize(
    ("read", "path", "message"),
    [
        ("mapping", ("a", "b", "c"), "a.b.c is not an object"),
        ("mapping", ("e", "f"), "e is not an object"),
        ("sequence", ("a", "b"), "a.b is not a list"),
        ("sequence", ("a", "list", "x"), "a.list is not an object"),
    ],
)
def test_another_type_of_value_is_an_error(read: str, path: tuple[str, ...], message: str) -> None:
    with pytest.raises(UnexpectedTemplateError, match=f"^{message}$"):
        getattr(Draft(DOCUMENT), read)(path)
