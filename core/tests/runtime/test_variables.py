from collections.abc import Callable
from datetime import date
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from capelin.api import Model, rule
from capelin.runtime.messages import read
from capelin.runtime.results import Failure
from capelin.runtime.topology.patches import is_object
from capelin.runtime.topology.templates import Builtins
from capelin.runtime.topology.variables import (
    RequestVariables,
    VariableSchemaError,
    read_variables,
    variable_schemas,
)
from capelin.runtime.v1alpha1 import Variable
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field


class Proxy(Model):
    """Proxy of the machines."""

    url: Annotated[str, MaxLen(200), Field(pattern="^https?://")]
    """With its scheme."""
    no_proxy: Annotated[list[str], MaxLen(50)] = []
    retries: Annotated[int, Ge(0), Le(9)] = 3

    rules = (rule("self.retries < 9 || size(self.noProxy) == 0", "too many retries"),)


class Variables(Model):
    proxy: Proxy | None = None
    """Proxy for outgoing traffic."""
    size: Literal["small", "large"]
    labels: Annotated[dict[str, str], MinLen(1)] = {}
    surge: int | str = 1
    ratio: Annotated[float, Gt(0)] = 0.5
    debug: bool = False
    anything: dict[str, Any] = {}
    value: Any = None
    image: str = Field(default="", examples=["registry.example.com/node"])


def schema_of(name: str, model: type[Model] = Variables) -> dict[str, Any]:
    (schema,) = [variable for variable in variable_schemas(model) if variable["name"] == name]
    return schema


def test_every_field_is_a_variable() -> None:
    schemas = variable_schemas(Variables)
    assert [(variable["name"], variable["required"]) for variable in schemas] == [
        ("proxy", False),
        ("size", True),
        ("labels", False),
        ("surge", False),
        ("ratio", False),
        ("debug", False),
        ("anything", False),
        ("value", False),
        ("image", False),
    ]


def test_a_nested_type_is_an_object_with_its_rules() -> None:
    assert schema_of("proxy")["schema"]["openAPIV3Schema"] == {
        "type": "object",
        "description": "Proxy for outgoing traffic.",
        "properties": {
            "url": {
                "type": "string",
                "description": "With its scheme.",
                "maxLength": 200,
                "pattern": "^https?://",
            },
            "noProxy": {"type": "array", "items": {"type": "string"}, "maxItems": 50},
            "retries": {"type": "integer", "minimum": 0, "maximum": 9, "default": 3},
        },
        "required": ["url"],
        "x-kubernetes-validations": [
            {"rule": "self.retries < 9 || size(self.noProxy) == 0", "message": "too many retries"}
        ],
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("size", {"type": "string", "enum": ["small", "large"]}),
        (
            "labels",
            {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
        ),
        ("surge", {"x-kubernetes-int-or-string": True, "default": 1}),
        ("ratio", {"type": "number", "minimum": 0, "exclusiveMinimum": True, "default": 0.5}),
        ("debug", {"type": "boolean", "default": False}),
        ("anything", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        ("value", {"x-kubernetes-preserve-unknown-fields": True}),
        ("image", {"type": "string", "default": "", "example": "registry.example.com/node"}),
    ],
)
def test_types_become_schemas(name: str, expected: dict[str, Any]) -> None:
    assert schema_of(name)["schema"]["openAPIV3Schema"] == expected


class Tree(Model):
    children: list["Tree"] = []


class Odd(Model):
    tags: set[str] = set()
    pair: tuple[int, str] = (1, "a")
    either: str | bool = ""
    fraction: Annotated[float, Le(0.5)] = 0
    tree: Tree | None = None
    by_number: dict[int, str] = {}
    steps: Annotated[int, Field(multiple_of=5)] = 0
    make: Callable[[], None] | None = None


def test_one_error_lists_all_unsupported_types() -> None:
    with pytest.raises(VariableSchemaError) as error:
        variable_schemas(Odd)
    assert str(error.value) == (
        "Odd cannot be the variables of a ClusterClass: "
        "tags has items, uniqueItems, which a variable cannot; "
        "pair has maxItems, minItems, prefixItems, which a variable cannot; "
        "either has several types, of which only int | str is allowed; "
        "fraction has a maximum that is not a whole number; "
        "tree.children[] is a Tree within itself, without end; "
        "byNumber is a map whose keys are not plain strings; "
        "steps has multipleOf, which a variable cannot; "
        "make is a collections.abc.Callable[[], None], which JSON does not have"
    )


def test_values_are_read_as_the_type_of_the_author() -> None:
    variables = read_variables(
        Variables, {"size": "small", "proxy": {"url": "https://p", "noProxy": ["a"]}, "other": 1}
    )
    assert variables.proxy
    assert (variables.proxy.url, variables.proxy.retries) == ("https://p", 3)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "size: Field required"),
        ({"size": "medium"}, "size: Input should be 'small' or 'large'"),
        ({"size": "small", "debug": "true"}, "debug: Input should be a valid boolean"),
        ({"size": "small", "debug": 1}, "debug: Input should be a valid boolean"),
        ({"size": "small", "labels": {}}, "labels: Dictionary should have at least 1 item"),
        ({"size": "small", "proxy": {"url": "ftp://x"}}, "proxy.url: String should match"),
        (
            {"size": "small", "proxy": {"url": "https://x", "retries": "3"}},
            "proxy.retries: Input should be a valid integer",
        ),
    ],
)
def test_invalid_values_are_rejected(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(Failure) as error:
        read_variables(Variables, values)
    assert error.value.message.startswith(f"the variables do not fit their schema: {problem}")


def test_the_error_does_not_contain_an_invalid_value() -> None:
    with pytest.raises(Failure) as error:
        read_variables(Variables, {"size": "s3cret"})
    assert "s3cret" not in error.value.message


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Unlike(Model):
    """Values whose types JSON does not have."""

    size: Size = Size.SMALL
    sizes: dict[str, list[Size]] = {}
    address: IPv4Address | None = None
    day: date | None = None
    id: UUID | None = None
    seed: bytes = b""
    plain: int = 0


def test_typed_values_are_read_from_json_strings() -> None:
    assert variable_schemas(Unlike)
    values: dict[str, Any] = {
        "size": "large",
        "sizes": {"a": ["small"]},
        "address": "10.0.0.1",
        "day": "2026-02-03",
        "id": "12345678-1234-5678-1234-567812345678",
        "seed": "abc",
        "plain": 1,
    }
    values_read = read_variables(Unlike, {**values, "other": "x"})
    assert values_read == Unlike(
        size=Size.LARGE,
        sizes={"a": [Size.SMALL]},
        address=IPv4Address("10.0.0.1"),
        day=date(2026, 2, 3),
        id=UUID(values["id"]),
        seed=b"abc",
        plain=1,
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"size": "medium"}, "size: Input should be 'small' or 'large'"),
        ({"size": "small", "plain": "1"}, "plain: Input should be a valid integer"),
        ({"address": 5}, "address: Input should be a valid string"),
    ],
)
def test_the_error_names_only_invalid_values(value: dict[str, Any], problem: str) -> None:
    with pytest.raises(Failure) as error:
        read_variables(Unlike, value)
    assert error.value.message == f"the variables do not fit their schema: {problem}"


def variables(**values: Any) -> list[Variable]:
    return [Variable(name=name, value=value) for name, value in values.items()]


class Two(Model):
    a: int = 0
    b: int = 0


def test_variables_of_a_template_take_precedence() -> None:
    request = RequestVariables(Two, variables(a=1, b=2, builtin={"cluster": {"name": "x"}}))
    assert request.typed([]) == Two(a=1, b=2)
    assert request.typed(variables(b=3)) == Two(a=1, b=3)
    assert request.typed([]) == Two(a=1, b=2)


def test_templates_without_own_variables_share_the_typed_variables() -> None:
    request = RequestVariables(Two, variables(a=1))
    assert request.typed([]) is request.typed(variables(builtin={}))


def test_builtin_variables_are_merged_at_every_depth() -> None:
    request = RequestVariables(
        Two,
        variables(builtin={"cluster": {"name": "x", "metadata": {"labels": {"a": "1", "b": "2"}}}}),
    )
    own = variables(
        builtin={
            "cluster": {"metadata": {"labels": {"b": "3"}}},
            "controlPlane": {"version": "v1.34.4"},
        }
    )
    assert request.builtin(own) == {
        "cluster": {"name": "x", "metadata": {"labels": {"a": "1", "b": "3"}}},
        "controlPlane": {"version": "v1.34.4"},
    }
    assert request.builtin([]) == {
        "cluster": {"name": "x", "metadata": {"labels": {"a": "1", "b": "2"}}}
    }


json_objects = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(
        st.integers(0, 3), lambda x: st.dictionaries(st.sampled_from("abc"), x, max_size=3)
    ),
)


@settings(deadline=None)
@given(json_objects, json_objects)
def test_merge_keeps_the_newer_value(older: dict[str, Any], newer: dict[str, Any]) -> None:
    request = RequestVariables(Two, variables(builtin=older))
    merged = request.builtin(variables(builtin=newer))

    def holds(whole: Any, part: Any) -> bool:
        if is_object(part):
            return all(key in whole and holds(whole[key], value) for key, value in part.items())
        return whole == part

    assert holds(merged, newer)
    assert merged.keys() == older.keys() | newer.keys()


def test_builtin_variables_are_typed() -> None:
    builtin = Builtins(
        {
            "cluster": {
                "name": "demo",
                "namespace": "default",
                "uid": "1",
                "metadata": {"labels": {"a": "b"}},
                "topology": {
                    "version": "v1.34.4",
                    "class": "quick",
                    "classNamespace": "default",
                    "classRef": {"name": "quick", "namespace": "default"},
                },
                "network": {
                    "serviceDomain": "cluster.local",
                    "services": ["10.128.0.0/12"],
                    "pods": ["192.168.0.0/16"],
                },
            },
            "machineDeployment": {
                "version": "v1.33.1",
                "class": "default-worker",
                "name": "demo-md",
                "topologyName": "md",
                "replicas": 3,
                "bootstrap": {"configRef": {"name": "boot"}},
                "infrastructureRef": {"name": "infra"},
            },
        }
    )
    assert builtin.cluster.topology.class_ref
    assert builtin.cluster.topology.class_ref.name == "quick"
    assert builtin.cluster.network.pods == ["192.168.0.0/16"]
    worker = builtin.machine_deployment
    assert worker
    assert (worker.class_, worker.replicas) == ("default-worker", 3)
    assert (worker.bootstrap.config_ref.name, worker.infrastructure_ref.name) == ("boot", "infra")
    assert builtin.control_plane is None
    assert builtin.machine_pool is None


def test_unknown_builtin_variables_are_ignored() -> None:
    builtin = Builtins({"controlPlane": {"version": "v1", "addedLater": {}}, "addedLater": 1})
    assert builtin.control_plane
    assert builtin.control_plane.version == "v1"


@pytest.mark.parametrize("document", [None, {}, "nonsense"])
def test_missing_builtin_variables_read_as_empty(document: Any) -> None:
    builtin = Builtins(document)
    assert builtin.cluster.name == ""
    assert builtin.control_plane is None


def test_a_variable_may_be_null() -> None:
    assert read(Variable, {"name": "a", "value": None}).value is None
