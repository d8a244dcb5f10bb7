"""A real API server rejects objects that break a rule, with the message of the rule."""

import os
import re
from datetime import timedelta
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt, MaxLen
from capelin.api import Model, Object, Unstructured, immutable, kind, major, minor, rule
from capelin.api.fields import DNSLabel, Duration, Int32, KubernetesVersion, map_list

from .conftest import Install
from .wire import Answer, Wire

GROUP = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.rules.capelin.test"
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


class Part(Model):
    name: DNSLabel
    low: Int32 = 0
    high: Int32 = 9

    rules = (rule("self.low <= self.high", "low has to be below high", field_path=".low"),)


class Window(Model):
    least: Int32 = 1
    most: Int32 = 9

    rules = (rule("self.least <= self.most", "least is at most most"),)


class Spec(Model):
    version: KubernetesVersion = "v1.30.0"
    backend: Annotated[Literal["a", "b"], immutable()] = "a"
    place: Annotated[DNSLabel, immutable("stays where it is")] | None = None
    colour: Annotated[
        DNSLabel,
        rule(
            "self != 'red'",
            "another colour, please",
            message_expression="self + ' is not a colour'",
            reason="FieldValueForbidden",
        ),
    ] = "green"
    window: Window = Window()
    parts: Annotated[list[Part], map_list("name"), MaxLen(5)] = []
    names: Annotated[
        dict[str, DNSLabel], MaxLen(5), rule("self.all(key, key != 'no')", "no is not a key")
    ] = {}
    least: Annotated[Duration, Ge(MINUTE)] = MINUTE
    more: Annotated[Duration, Gt(MINUTE)] = HOUR
    most: Annotated[Duration, Le(HOUR)] = HOUR
    less: Annotated[Duration, Lt(HOUR)] = MINUTE

    rules = (
        rule(
            f"{major('self.version')} == {major('oldSelf.version')}"
            f" && {minor('self.version')} - {minor('oldSelf.version')} in [0, 1]",
            "upgrades go one minor version at a time",
            field_path=".version",
        ),
        rule("!has(self.place) || self.backend == 'a'", "only a has a place"),
    )


class Status(Model):
    count: Annotated[Int32, rule("self >= oldSelf", "never counts down")] = 0


@kind(group=GROUP, version="v1")
class Ruled(Object[Spec, Status]):
    """A kind with a rule of each type."""

    rules = (rule("!self.metadata.name.startsWith('x')", "names do not start with x"),)


COLLECTION = Ruled.resource.path("default")


@pytest.fixture(scope="module")
def server(wire: Wire, install: Install) -> Wire:
    assert install(Ruled).warnings == []
    return wire


def ruled(name: str, spec: Unstructured) -> Unstructured:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Ruled",
        "metadata": {"name": name},
        "spec": spec,
    }


def refusal(answer: Answer) -> tuple[str, str]:
    """Field and message of the first cause."""
    assert answer.status == 422, answer.body
    causes: list[dict[str, str]] = answer.body["details"]["causes"]
    return causes[0]["field"], re.sub(r'^[^:]*: ("\w+": |\d+: )?', "", causes[0]["message"])


CREATED: list[tuple[Unstructured, str, str]] = [
    ({"colour": "red"}, "spec.colour", "red is not a colour"),
    ({"parts": [{"name": "a", "low": 10}]}, "spec.parts[0].low", "low has to be below high"),
    ({"window": {"least": 10}}, "spec.window", "least is at most most"),
    ({"names": {"no": "a"}}, "spec.names", "no is not a key"),
    ({"place": "a", "backend": "b"}, "spec", "only a has a place"),
    ({"least": "59s"}, "spec.least", "must be at least 1m0s"),
    ({"more": "1m"}, "spec.more", "must be more than 1m0s"),
    ({"most": "60m1s"}, "spec.most", "must be at most 1h0m0s"),
    ({"less": "1h"}, "spec.less", "must be less than 1h0m0s"),
]


@pytest.mark.parametrize(("spec", "field", "message"), CREATED)
def test_create_fails_if_it_breaks_a_rule(
    server: Wire, spec: Unstructured, field: str, message: str
) -> None:
    answer = server.send("POST", f"{COLLECTION}?dryRun=All", ruled("a", spec))
    assert refusal(answer) == (field, message)


UPDATED: list[tuple[Unstructured, Unstructured, str, str]] = [
    ({}, {"backend": "b"}, "spec.backend", "cannot be changed once it is set"),
    ({"place": "a"}, {"place": "b"}, "spec.place", "stays where it is"),
    ({"place": "a"}, {"place": None}, "spec.place", "stays where it is"),
    ({}, {"version": "v1.32.0"}, "spec.version", "upgrades go one minor version at a time"),
    ({}, {"version": "v1.29.0"}, "spec.version", "upgrades go one minor version at a time"),
    ({}, {"version": "v2.30.0"}, "spec.version", "upgrades go one minor version at a time"),
]


def update(server: Wire, path: str, change: Unstructured) -> Answer:
    return server.send("PATCH", path, change, "application/merge-patch+json")


@pytest.mark.parametrize(("before", "change", "field", "message"), UPDATED)
def test_update_fails_if_it_breaks_a_rule(
    server: Wire, before: Unstructured, change: Unstructured, field: str, message: str
) -> None:
    path = f"{COLLECTION}/changing"
    assert server.send("POST", COLLECTION, ruled("changing", before)).status == 201
    try:
        answer = update(server, path, {"spec": change})
        assert refusal(answer) == (field, message)
    finally:
        server.send("DELETE", path)


ALLOWED: list[Unstructured] = [{"place": "a"}, {"version": "v1.31.4"}, {"version": "1.30.9"}]


@pytest.mark.parametrize("change", ALLOWED)
def test_update_succeeds_within_the_rules(server: Wire, change: Unstructured) -> None:
    path = f"{COLLECTION}/allowed"
    assert server.send("POST", COLLECTION, ruled("allowed", {})).status == 201
    try:
        assert update(server, path, {"spec": change}).status == 200
    finally:
        server.send("DELETE", path)


def test_a_rule_of_a_kind_can_read_the_name(server: Wire) -> None:
    answer = server.send("POST", f"{COLLECTION}?dryRun=All", ruled("xa", {}))
    assert refusal(answer)[1] == "names do not start with x"


def test_a_rule_in_the_status_applies_to_status_updates(server: Wire) -> None:
    path = f"{COLLECTION}/counting"
    server.send("POST", COLLECTION, ruled("counting", {}))
    try:
        assert update(server, f"{path}/status", {"status": {"count": 2}}).status == 200
        answer = update(server, f"{path}/status", {"status": {"count": 1}})
        assert refusal(answer) == ("status.count", "never counts down")
    finally:
        server.send("DELETE", path)


def test_the_response_contains_the_reason_of_the_rule(server: Wire) -> None:
    answer = server.send("POST", f"{COLLECTION}?dryRun=All", ruled("a", {"colour": "red"}))
    assert answer.body["details"]["causes"][0]["reason"] == "FieldValueForbidden"


@pytest.mark.parametrize("message", ["", "  ", "two\nlines"])
def test_a_rule_needs_a_message_of_one_line(message: str) -> None:
    with pytest.raises(ValueError, match="needs a message of one line"):
        rule("true", message)


def test_python_does_not_check_rules() -> None:
    assert Part(name="a", low=10).low == 10
