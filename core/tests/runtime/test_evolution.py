from collections.abc import Callable
from copy import deepcopy
from datetime import date
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le, MaxLen
from capelin.runtime.catalog import Catalog, Deprecation, Hook
from capelin.runtime.evolution import Release, breaking_changes
from capelin.runtime.messages import Part, Request, Response
from capelin.runtime.openapi import openapi_document
from capelin.runtime.v1alpha1 import CLUSTER_API
from pydantic import Field

GROUP = "hooks.example.com"
PATH = f"/{GROUP}/v1/ask/{{name}}"


class Detail(Part):
    """Part of a list."""

    text: Annotated[str, MaxLen(10), Field(pattern="^a")] = ""
    mode: Literal["fast", "slow"] = "fast"


class Cat(Part):
    """Part of a choice."""

    lives: Annotated[int, Ge(0), Le(9)] = 9


class Dog(Part):
    """Part of a choice."""

    tricks: int = 0


class AskRequest(Request):
    name: str
    count: Annotated[int, Ge(0), Le(9)] = 0
    details: list[Detail] = []


class AskResponse(Response):
    answer: str = ""
    parts: dict[str, Detail] = {}
    limit: int | str = 0
    pet: Cat | Dog = Cat()
    size: Annotated[int, Le(5)] | str = 0


class Ask(Hook[AskRequest, AskResponse]):
    """Asks."""


def document(*versions: str, deprecated: dict[str, Deprecation] | None = None) -> dict[str, Any]:
    catalog = Catalog()
    for version in versions:
        hook = type("Ask", (Hook,), {"__orig_bases__": (Hook[AskRequest, AskResponse],)})
        catalog.hook(
            f"{GROUP}/{version}",
            summary="Asks",
            tag="Questions",
            deprecated=(deprecated or {}).get(version),
        )(hook)
    return openapi_document(catalog, title="t", version="1")


TODAY = [Release("1.0", date(2026, 1, 1))]


def changed(change: Callable[[dict[str, Any]], object]) -> list[str]:
    """What is said of a change to the schemas, by type name."""
    released = document("v1")
    wanted = deepcopy(released)
    change({name.rpartition(".")[2]: s for name, s in wanted["components"]["schemas"].items()})
    return breaking_changes(released, wanted, releases=TODAY)


def test_nothing_changed_breaks_nothing() -> None:
    assert changed(lambda _: None) == []
    cluster_api = openapi_document(CLUSTER_API, title="t", version="1")
    assert breaking_changes(cluster_api, deepcopy(cluster_api), releases=TODAY) == []


def test_what_is_added_and_optional_breaks_nothing() -> None:
    def add(types: dict[str, Any]) -> None:
        types["AskRequest"]["properties"]["more"] = {"type": "string"}
        types["AskResponse"]["properties"]["more"] = {"type": "string"}
        types["Detail"]["properties"]["mode"]["enum"].append("middling")
        types["Detail"]["properties"]["text"]["maxLength"] = 20
        del types["AskRequest"]["properties"]["count"]["maximum"]
        types["AskResponse"]["required"].remove("status")
        types["AskResponse"]["properties"]["limit"]["anyOf"].append({"type": "boolean"})
        types["AskResponse"]["properties"]["size"]["anyOf"][0]["maximum"] = 10

    assert changed(add) == []


HEAD = f"rule 1: ask {GROUP}/v1: "
TAIL = "; make the change in a new version"


def narrow(limit: str, types: dict[str, Any]) -> None:
    types["AskResponse"]["properties"]["answer"][limit] = 5


CHANGES: list[tuple[Callable[[dict[str, Any]], object], list[str]]] = [
    (lambda t: t["AskRequest"]["properties"].pop("count"), ["request.count is gone"]),
    (lambda t: t["AskResponse"]["properties"].pop("answer"), ["response.answer is gone"]),
    (
        lambda t: t["AskRequest"]["required"].append("count"),
        ["request.count is required now"],
    ),
    (
        lambda t: t["AskResponse"]["required"].append("answer"),
        ["response.answer is required now"],
    ),
    (lambda t: t["AskRequest"]["required"].clear(), ["request.name may be missing now"]),
    (
        lambda t: t["AskRequest"]["properties"]["count"].update(type="string"),
        ["request.count was integer and is string"],
    ),
    (
        lambda t: t["AskRequest"]["properties"]["count"].update(format="int32"),
        ["request.count was None and is int32"],
    ),
    (
        lambda t: t["AskRequest"]["properties"]["count"].update(maximum=5),
        ["request.count has a narrower maximum"],
    ),
    (
        lambda t: t["AskRequest"]["properties"]["count"].update(minimum=1),
        ["request.count has a narrower minimum"],
    ),
    (
        lambda t: t["AskResponse"]["properties"]["parts"].update(
            additionalProperties={"type": "string"}
        ),
        ["response.parts[] was object and is string"],
    ),
    (
        lambda t: t["AskRequest"]["properties"]["count"].update(exclusiveMinimum=True),
        ["request.count has a narrower minimum"],
    ),
    (
        lambda t: t["AskRequest"]["properties"]["count"].update(exclusiveMaximum=True),
        ["request.count has a narrower maximum"],
    ),
    (lambda t: t["Cat"]["properties"].pop("lives"), ["response.pet.lives is gone"]),
    (
        lambda t: t["AskResponse"]["properties"]["pet"]["anyOf"].pop(0),
        ["response.pet does not take Cat any more"],
    ),
    (
        lambda t: t["AskResponse"]["properties"]["size"]["anyOf"][0].update(maximum=4),
        ["response.size has a narrower maximum"],
    ),
    *(
        (
            partial(narrow, key),
            [f"response.answer has a narrower {key}"],
        )
        for key in [
            "maximum",
            "maxLength",
            "maxItems",
            "maxProperties",
            "minimum",
            "minLength",
            "minItems",
            "minProperties",
        ]
    ),
    (
        lambda t: t["AskResponse"]["properties"]["limit"].update(anyOf=[{"type": "integer"}]),
        ["response.limit does not take string any more"],
    ),
    (
        lambda t: t["AskResponse"]["properties"]["answer"].update(enum=["yes"]),
        ["response.answer does not take values any more"],
    ),
    (
        lambda t: t["Detail"]["properties"].pop("text"),
        ["request.details[].text is gone"],
    ),
    (
        lambda t: t["Detail"]["properties"]["text"].update(pattern="^b"),
        ["request.details[].text has another pattern"],
    ),
    (
        lambda t: t["Detail"]["properties"]["mode"]["enum"].remove("slow"),
        ["request.details[].mode does not take slow any more"],
    ),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_what_breaks_the_other_side_is_named(
    change: Callable[[dict[str, Any]], object], said: list[str]
) -> None:
    assert changed(change) == [f"{HEAD}{one}{TAIL}" for one in said]


def test_a_type_may_get_another_name() -> None:
    released = document("v1")
    wanted = eval(repr(released).replace(".Detail", ".Particular"))  # noqa: S307 our own text
    assert breaking_changes(released, wanted, releases=TODAY) == []


def test_the_last_version_of_a_hook_stays() -> None:
    assert breaking_changes(document("v1alpha1"), document(), releases=TODAY) == [
        f"rule 1: ask {GROUP}/v1alpha1 is gone and no version of it is left; keep one"
    ]


def test_an_alpha_version_goes_at_once_when_another_is_there() -> None:
    wanted = document("v1alpha2")
    assert breaking_changes(document("v1alpha1", "v1alpha2"), wanted, releases=TODAY) == []


def test_a_beta_version_does_not_go_unannounced() -> None:
    assert breaking_changes(document("v1beta1", "v1"), document("v1"), releases=TODAY) == [
        f"rule 4: ask {GROUP}/v1beta1 is gone without having been deprecated; deprecate it first"
    ]


def going(version: str, newer: str = "v2") -> dict[str, Any]:
    announced = Deprecation("1.4", date(2026, 8, 31), replaced_by=newer)
    return document(version, newer, deprecated={version: announced})


def released_on(*dates: date) -> list[Release]:
    return [Release(f"1.{4 + number}", day) for number, day in enumerate(dates)]


@pytest.mark.parametrize(
    ("version", "releases", "end"),
    [
        # too few releases
        (
            "v1beta1",
            released_on(date(2026, 8, 31), date(2027, 9, 1)),
            "2 releases and until 2027-02-28",
        ),
        # too soon
        (
            "v1beta1",
            released_on(date(2026, 8, 31), date(2026, 9, 1), date(2027, 2, 27)),
            "2 releases and until 2027-02-28",
        ),
        (
            "v1",
            released_on(date(2026, 8, 31), date(2027, 1, 1), date(2027, 6, 1), date(2027, 8, 30)),
            "3 releases and until 2027-08-31",
        ),
        # an announcement that nobody knows when was made
        ("v1beta1", [Release("3.0", date(2030, 1, 1))], "2 releases and until 2027-02-28"),
    ],
)
def test_a_deprecated_version_stays_for_a_while(
    version: str, releases: list[Release], end: str
) -> None:
    (problem,) = breaking_changes(going(version), document("v2"), releases=releases)
    early = f"rule 4: ask {GROUP}/{version} is gone too early"
    assert problem == f"{early}; it was deprecated in 1.4 and stays for {end}"


@pytest.mark.parametrize(
    ("version", "releases"),
    [
        ("v1beta1", released_on(date(2026, 8, 31), date(2026, 12, 1), date(2027, 2, 28))),
        (
            "v1",
            released_on(date(2026, 8, 31), date(2027, 1, 1), date(2027, 6, 1), date(2027, 8, 31)),
        ),
    ],
)
def test_a_deprecated_version_goes_when_its_time_is_over(
    version: str, releases: list[Release]
) -> None:
    assert breaking_changes(going(version), document("v2"), releases=releases) == []


@pytest.mark.parametrize(
    ("version", "newer", "problem"),
    [
        ("v1beta1", "v2alpha1", "which is less stable"),
        ("v1", "v2beta1", "which is less stable"),
    ],
)
def test_a_replacement_is_at_least_as_stable(version: str, newer: str, problem: str) -> None:
    wanted = going(version, newer)
    assert breaking_changes(document(version, newer), wanted, releases=TODAY) == [
        f"rule 3: ask {GROUP}/{version} is deprecated in favour of ask {GROUP}/{newer}, {problem}"
    ]


def test_a_replacement_exists() -> None:
    announced = Deprecation("1.4", date(2026, 8, 31), replaced_by="v2")
    wanted = document("v1", deprecated={"v1": announced})
    assert breaking_changes(document("v1"), wanted, releases=TODAY) == [
        f"rule 3: ask {GROUP}/v1 is deprecated in favour of ask {GROUP}/v2, which does not exist"
    ]


def test_a_stable_version_may_replace_an_older_one() -> None:
    assert breaking_changes(document("v1beta1"), going("v1beta1", "v1"), releases=TODAY) == []
