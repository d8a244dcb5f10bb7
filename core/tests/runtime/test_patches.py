from typing import Any

import orjson
import pytest
from capelin.json_patches import PatchError, apply_json_patch, apply_merge_patch
from capelin.runtime.topology.patches import (
    is_list,
    is_object,
    json_patch,
    merge_patch,
    same,
)
from hypothesis import given
from hypothesis import strategies as st

keys = st.sampled_from(["a", "b", "c", "a/b", "~x", "", "0", "-"])
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([0.0, 1.0, 0.5])
    | st.sampled_from(["", "a", "x"])
)
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=10,
)
pairs = st.tuples(documents, documents)


def text(document: Any) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


@given(pairs)
def test_a_json_patch_converts_one_document_into_the_other(pair: tuple[Any, Any]) -> None:
    before, after = pair
    original = text(before)
    assert text(apply_json_patch(before, json_patch(before, after))) == text(after)
    assert text(before) == original


@given(pairs)
def test_every_step_of_a_json_patch_is_necessary(pair: tuple[Any, Any]) -> None:
    before, after = pair
    steps = json_patch(before, after)
    for index in range(len(steps)):
        fewer = steps[:index] + steps[index + 1 :]
        try:
            assert text(apply_json_patch(before, fewer)) != text(after)
        except PatchError:
            continue


@given(documents)
def test_the_same_document_needs_no_patch(document: Any) -> None:
    copy = orjson.loads(text(document))
    assert json_patch(document, copy) == []
    assert merge_patch(document, copy) == ({} if isinstance(document, dict) else copy)


def shuffled(document: Any) -> Any:
    if is_object(document):
        return {key: shuffled(document[key]) for key in reversed(list(document))}
    return [shuffled(item) for item in document] if is_list(document) else document


@given(pairs)
def test_patches_do_not_depend_on_the_order_of_fields(pair: tuple[Any, Any]) -> None:
    before, after = pair
    assert text(json_patch(before, after)) == text(json_patch(shuffled(before), shuffled(after)))


def has_null(document: Any) -> bool:
    return is_object(document) and any(
        value is None or has_null(value) for value in document.values()
    )


@given(pairs)
def test_a_merge_patch_converts_one_document_into_the_other(pair: tuple[Any, Any]) -> None:
    before, after = pair
    try:
        patch = merge_patch(before, after)
    except PatchError:
        assert has_null(after)
    else:
        assert text(apply_merge_patch(before, patch)) == text(after)


SHORT: list[tuple[Any, Any, list[dict[str, Any]]]] = [
    ({"a": 1}, {"a": 2}, [{"op": "replace", "path": "/a", "value": 2}]),
    ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
    ({"a": 1}, {"a": 1.0}, [{"op": "replace", "path": "/a", "value": 1.0}]),
    ({"a": {"b": 1}}, {"a": {}}, [{"op": "remove", "path": "/a/b"}]),
    (
        {"a/b": {"~": 1}},
        {"a/b": {"~": 2}},
        [{"op": "replace", "path": "/a~1b/~0", "value": 2}],
    ),
    ([1, 2, 3], [0, 1, 2, 3], [{"op": "add", "path": "/0", "value": 0}]),
    ([1, 2, 3], [1, 2, 3, 4], [{"op": "add", "path": "/3", "value": 4}]),
    ([1, 2, 3], [1, 3], [{"op": "remove", "path": "/1"}]),
    ([1, 2, 3], [], [{"op": "remove", "path": f"/{index}"} for index in (2, 1, 0)]),
    (
        [{"name": "a", "value": "1"}, {"name": "b"}],
        [{"name": "a", "value": "2"}, {"name": "b"}],
        [{"op": "replace", "path": "/0/value", "value": "2"}],
    ),
    ([1, 1], [1, 1, 1], [{"op": "add", "path": "/2", "value": 1}]),
    ({}, [], [{"op": "replace", "path": "", "value": []}]),
    (
        {"z": 1},
        {"b": 1, "a": 1},
        [
            {"op": "add", "path": "/a", "value": 1},
            {"op": "add", "path": "/b", "value": 1},
            {"op": "remove", "path": "/z"},
        ],
    ),
]


@pytest.mark.parametrize(("before", "after", "steps"), SHORT)
def test_patches_are_short(before: Any, after: Any, steps: list[dict[str, Any]]) -> None:
    assert text(json_patch(before, after)) == text(steps)


@pytest.mark.parametrize(
    ("before", "after", "patch"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"b": 3}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}),
        ({"a": [1, 2]}, {"a": [1, None]}, {"a": [1, None]}),
        ({"a": None}, {"a": None, "b": 1}, {"b": 1}),
        ({"a": 1}, [1], [1]),
    ],
)
def test_merge_patches_are_short(before: Any, after: Any, patch: Any) -> None:
    assert text(merge_patch(before, after)) == text(patch)


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        ({"a": 1}, {"a": None}, "a"),
        ({}, {"a": {"b": None}}, "a.b"),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": None}}}, "a.b.c"),
        (1, {"a": None}, "the document.a"),
    ],
)
def test_a_merge_patch_rejects_a_new_null(before: Any, after: Any, where: str) -> None:
    with pytest.raises(PatchError) as error:
        merge_patch(before, after)
    assert str(error.value) == f"a merge patch cannot set {where} to null: use a JSON Patch"


def test_integers_booleans_and_floats_are_not_the_same() -> None:
    assert same({"a": [1, "x"]}, {"a": [1, "x"]})
    assert not same(1, True)
    assert not same({"a": [1]}, {"a": [1.0]})
    assert not same({"a": [0]}, {"a": [False]})


DOCUMENT: dict[str, Any] = {"a": {"b": [1, 2]}, "c": "x"}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"op": "add", "path": "/a/b/-", "value": 3}, {"a": {"b": [1, 2, 3]}, "c": "x"}),
        ({"op": "add", "path": "/a/b/0", "value": 0}, {"a": {"b": [0, 1, 2]}, "c": "x"}),
        ({"op": "move", "from": "/c", "path": "/d"}, {"a": {"b": [1, 2]}, "d": "x"}),
        ({"op": "copy", "from": "/a/b", "path": "/c"}, {"a": {"b": [1, 2]}, "c": [1, 2]}),
        ({"op": "test", "path": "/c", "value": "x"}, DOCUMENT),
        ({"op": "replace", "path": "", "value": 1}, 1),
    ],
)
def test_all_operations_of_json_patch_are_supported(step: dict[str, Any], expected: Any) -> None:
    assert apply_json_patch(DOCUMENT, [step]) == expected


def test_added_values_are_copied() -> None:
    value = {"x": 1}
    steps: list[dict[str, Any]] = [
        {"op": "add", "path": "/d", "value": value},
        {"op": "copy", "from": "/d", "path": "/e"},
        {"op": "replace", "path": "/d/x", "value": 2},
    ]
    assert apply_json_patch(DOCUMENT, steps)["e"] == {"x": 1}
    assert value == {"x": 1}


@pytest.mark.parametrize(
    "step",
    [
        {"op": "remove", "path": "/nothing"},
        {"op": "replace", "path": "/nothing", "value": 1},
        {"op": "replace", "path": "/a/b/2", "value": 1},
        {"op": "add", "path": "/a/b/3", "value": 1},
        {"op": "add", "path": "/a/b/-1", "value": 1},
        {"op": "add", "path": "/c/d", "value": 1},
        {"op": "add", "path": "/d"},
        {"op": "test", "path": "/c", "value": "y"},
        {"op": "test", "path": "/a/b/0", "value": True},
        {"op": "melt", "path": "/c"},
        {"path": "/c"},
    ],
)
def test_steps_that_do_not_fit_the_document_fail(step: dict[str, Any]) -> None:
    with pytest.raises(PatchError, match="does not fit the document"):
        apply_json_patch(DOCUMENT, [step])
