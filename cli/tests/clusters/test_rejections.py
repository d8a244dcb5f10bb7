"""Rejections by Cluster API in the output of the command line."""

from typing import Any

import pytest
from capelin.client import ApiError, Forbidden, Invalid
from capelin.errors import InvalidInputError
from capelin_cli.clusters.demo import demo_class
from capelin_cli.clusters.rejections import describe_schema, rejected_cluster


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
