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
    """What a draft does, on a copy of everything."""
    at: Any = document
    for depth, key in enumerate(path, 1):
        if at.get(key) is None:
            at[key] = make() if depth == len(path) else {}
        at = at[key]
        if not isinstance(at, make if depth == len(path) else dict):
            raise UnexpectedTemplateError(".".join(path[:depth]))
    return at


def change(found: Any, key: str, value: Any) -> None:
    if is_list(found):
        found.append(deepcopy(value))
    elif key in found and value is None:
        del found[key]
    elif is_object(found):
        found[key] = deepcopy(value)


def inside(found: Any, expected: Any) -> list[tuple[Any, Any]]:
    """Objects and lists in two that are alike."""
    keys: list[Any] = list(found) if is_object(found) else list(range(len(found)))
    parts = [(found[key], expected[key]) for key in keys]
    return [part for part in parts if is_object(part[0]) or is_list(part[0])]


@given(documents, actions)
def test_a_draft_changes_as_a_copy_of_everything_does(
    document: dict[str, Any], todo: list[tuple[str, Path, str, Any]]
) -> None:
    before, copy, draft = deepcopy(document), deepcopy(document), CopyOnWrite(document)
    in_hand: list[tuple[Any, Any]] = []
    for what, path, key, value in todo:
        make = list if what == "sequence" else dict
        try:
            expected = copy if what == "whole" else plainly(copy, path, make)
        except UnexpectedTemplateError as refused:
            ask = draft.sequence if what == "sequence" else draft.mapping
            with pytest.raises(UnexpectedTemplateError, match=f"^{refused} is not an? "):
                ask(path)
            continue
        match what:
            case "whole":
                found: Any = draft.whole()
            case "mapping":
                found = draft.mapping(path)
            case _:
                found = draft.sequence(path)
        assert repr(found) == repr(expected)
        # What somebody got before can be changed as ever, and what is inside of it.
        in_hand = [(found, expected), *in_hand, *inside(found, expected)]
        for one, other in in_hand[:3]:
            change(one, key, value)
            change(other, key, value)
    assert repr(document) == repr(before)
    assert draft.document == copy
    assert repr(draft.json_patch()) == repr(json_patch(before, copy))


def test_what_is_in_hand_stays_the_same_thing() -> None:
    draft = CopyOnWrite({"a": {"b": {"c": 1}, "d": {}}})
    in_hand = draft.mapping(("a", "b"))
    assert draft.mapping(("a",))["b"] is in_hand
    assert draft.whole()["a"]["b"] is in_hand
    assert draft.mapping(("a", "b")) is in_hand


def test_what_nobody_asked_for_is_shared() -> None:
    document: dict[str, Any] = {"a": {"b": {}, "d": {}}, "e": {}}
    draft = CopyOnWrite(document)
    draft.mapping(("a", "b"))
    assert draft.document["e"] is document["e"]
    assert draft.document["a"]["d"] is document["a"]["d"]
    assert draft.document["a"]["b"] is not document["a"]["b"]
