from copy import deepcopy
from typing import Any

import pytest
from capelin.runtime.topology.cow import CopyOnWrite, Path, UnexpectedTemplateError
from capelin.runtime.topology.patches import is_list, is_object, json_patch
from hypothesis import given
from hypothesis import strategies as st

keys = st.sampled_from(["a", "b", "c/d"])
documents = st.dictionaries(
    keys,
    st.recursive(
        st.none() | st.booleans() | st.sampled_from([0, 1, 1.0, "x"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=12,
    ),
    max_size=3,
)
values = st.sampled_from([True, 1, 1.0, "x", None, [], {}, {"a": 1}, [1]])
paths = st.lists(keys, min_size=1, max_size=4).map(tuple)
actions = st.lists(
    st.tuples(st.sampled_from(["mapping", "sequence", "whole"]), paths, keys, values), max_size=6
)


def plainly(document: dict[str, Any], path: Path, make: type[Any]) -> Any:
    """The operation of a draft on a full copy."""
    at: Any = document
    for depth, key in enumerate(path, 1):
        if at.get(key) is None:
            at[key] = make() if depth == len(path) else {}
        at = at[key]
        if not isinstance(at, make if depth == len(path) else dict):
            raise UnexpectedTemplateError(".".join(path[:depth]))
    return at


def change(actual: Any, key: str, value: Any) -> None:
    if is_list(actual):
        actual.append(deepcopy(value))
    elif key in actual and value is None:
        del actual[key]
    elif is_object(actual):
        actual[key] = deepcopy(value)


def inside(actual: Any, expected: Any) -> list[tuple[Any, Any]]:
    """Pairs of nested objects and lists in two equal values."""
    keys: list[Any] = list(actual) if is_object(actual) else list(range(len(actual)))
    parts = [(actual[key], expected[key]) for key in keys]
    return [part for part in parts if is_object(part[0]) or is_list(part[0])]


@given(documents, actions)
def test_a_draft_behaves_like_a_full_copy(
    document: dict[str, Any], todo: list[tuple[str, Path, str, Any]]
) -> None:
    before, copy, draft = deepcopy(document), deepcopy(document), CopyOnWrite(document)
    results: list[tuple[Any, Any]] = []
    for what, path, key, value in todo:
        make = list if what == "sequence" else dict
        try:
            expected = copy if what == "whole" else plainly(copy, path, make)
        except UnexpectedTemplateError as error:
            read = draft.sequence if what == "sequence" else draft.mapping
            with pytest.raises(UnexpectedTemplateError, match=f"^{error} is not an? "):
                read(path)
            continue
        match what:
            case "whole":
                actual: Any = draft.whole()
            case "mapping":
                actual = draft.mapping(path)
            case _:
                actual = draft.sequence(path)
        assert repr(actual) == repr(expected)
        # Earlier results and their contents can still be changed.
        results = [(actual, expected), *results, *inside(actual, expected)]
        for result, reference in results[:3]:
            change(result, key, value)
            change(reference, key, value)
    assert repr(document) == repr(before)
    assert draft.document == copy
    assert repr(draft.json_patch()) == repr(json_patch(before, copy))


def test_a_draft_returns_the_same_object_again() -> None:
    draft = CopyOnWrite({"a": {"b": {"c": 1}, "d": {}}})
    mapping = draft.mapping(("a", "b"))
    assert draft.mapping(("a",))["b"] is mapping
    assert draft.whole()["a"]["b"] is mapping
    assert draft.mapping(("a", "b")) is mapping


def test_a_draft_shares_parts_that_were_not_read() -> None:
    document: dict[str, Any] = {"a": {"b": {}, "d": {}}, "e": {}}
    draft = CopyOnWrite(document)
    draft.mapping(("a", "b"))
    assert draft.document["e"] is document["e"]
    assert draft.document["a"]["d"] is document["a"]["d"]
    assert draft.document["a"]["b"] is not document["a"]["b"]
