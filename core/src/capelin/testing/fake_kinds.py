"""The kinds of a `FakeServer`: their schemas, their validation, and selectors."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from pydantic import ValidationError

from capelin.api import BaseObject, Resource, SchemaError, Unstructured, capi, core, crd
from capelin.client import ApiError, BadRequest, Invalid
from capelin.testing.patches import Schema, object_schema

Key = tuple[str, str, str, str]
"""Group, plural, namespace and name."""

_CONDITIONS: Schema = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}


@dataclass(frozen=True, slots=True)
class FakeKind:
    resource: Resource
    schema: Schema
    model: type[BaseObject] | None
    closed: bool
    """The class has all fields of the kind."""

    @staticmethod
    @cache
    def of(kind: type[BaseObject] | Resource) -> "FakeKind":
        """The kind of a class, or one with only a resource. Computed once."""
        schema, closed = _schema_of(kind)
        if isinstance(kind, Resource):
            return FakeKind(kind, object_schema(schema), None, closed)
        return FakeKind(kind.resource, object_schema(schema), kind, closed)


@dataclass(frozen=True, slots=True)
class Target:
    """The subject of a request."""

    kind: FakeKind
    namespace: str
    name: str
    subresource: str
    parameters: Mapping[str, str]

    @property
    def key(self) -> Key:
        resource = self.kind.resource
        return resource.group, resource.plural, self.namespace, self.name

    def selects(self, key: Key, manifest: Unstructured) -> bool:
        """Whether a list or a watch contains an object."""
        return (
            key[:2] == self.key[:2]
            and self.namespace in {"", key[2]}
            and selects(
                self.parameters.get("labelSelector", ""),
                manifest["metadata"].get("labels", {}).get,
            )
            and selects(
                self.parameters.get("fieldSelector", ""), lambda path: field_at(manifest, path)
            )
        )

    def error(
        self, of: type[ApiError], status: int, message: str, causes: Iterable[Any] = ()
    ) -> ApiError:
        resource = self.kind.resource
        full_name = ".".join(part for part in (resource.plural, resource.group) if part)
        details = {
            "name": self.name,
            "group": resource.group,
            "kind": resource.plural,
            "causes": list(causes),
        }
        return of(status, of.__name__, f'{full_name} "{self.name}" {message}', details)


def _schema_of(kind: type[BaseObject] | Resource) -> tuple[Schema, bool]:
    """The schema of a kind, and whether it has all fields of the kind."""
    if isinstance(kind, Resource):
        status = {"properties": {"conditions": _CONDITIONS}}
        return {"properties": {"spec": {}, "status": status}}, False
    if kind.resource.group and kind.__module__ not in {core.__name__, capi.__name__}:
        try:
            return crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"], True
        except SchemaError:
            pass
    document: Unstructured = kind.model_json_schema()
    structure = _structure(document, document.get("$defs", {}))
    if issubclass(kind, core.Secret):
        structure = {"properties": {**structure["properties"], "type": {"default": "Opaque"}}}
    return structure, False


def _structure(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Names of fields and maps from pydantic's schema. Conditions merge by type."""
    if "anyOf" in schema:
        options: list[Schema] = [
            option for option in schema["anyOf"] if option.get("type") != "null"
        ]
        return _structure(options[0], definitions)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        # A recursive definition ends here.
        rest = {key: value for key, value in definitions.items() if key != name}
        return _structure(definitions.get(name, {}), rest)
    fields = {
        name: {**_CONDITIONS, "items": _structure(part.get("items", {}), definitions)}
        if name == "conditions" and "items" in part
        else _structure(part, definitions)
        for name, part in schema.get("properties", {}).items()
    }
    values = schema.get("additionalProperties")
    maps: Unstructured = {"additionalProperties": values} if isinstance(values, dict) else {}
    return {**({"properties": fields} if fields else {}), **maps}


def validate(target: Target, manifest: Unstructured) -> None:
    """Reject an object that does not fit the kind.

    Raises:
        BadRequest: A field is unknown.
        Invalid: A value does not fit.
    """
    model = target.kind.model
    if model is None:
        return
    fields = {key: value for key, value in manifest.items() if key not in {"apiVersion", "kind"}}
    try:
        if target.kind.closed:
            model.model_validate_json(json.dumps(fields))
        else:
            model.read_json(json.dumps(fields))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        causes = [
            {
                "reason": "FieldValueInvalid",
                "message": problem["msg"],
                "field": ".".join(str(part) for part in problem["loc"]),
            }
            for problem in problems
        ]
        unknown = [
            c["field"] for c, p in zip(causes, problems, strict=True) if "extra" in p["type"]
        ]
        if unknown:
            message = f'strict decoding error: unknown field "{unknown[0]}"'
            raise target.error(BadRequest, 400, message) from None
        message = f"is invalid: {causes[0]['field']}: {causes[0]['message']}"
        raise target.error(Invalid, 422, message, causes) from None


def without_nulls(value: Any) -> Any:
    """The value without null fields, which the server does not store."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key: without_nulls(child) for key, child in fields.items() if child is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in cast("list[Any]", value)]
    return value


def selects(selector: str, value_of: Callable[[str], Any]) -> bool:
    """Whether a label or field selector matches, including `in` and `notin`."""
    # Commas in parentheses separate values, others separate requirements.
    requirements: list[str] = [""]
    depth = 0
    for letter in selector:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            requirements.append("")
        else:
            requirements[-1] += letter
    return all(_fits(text.strip(), value_of) for text in requirements if text.strip())


def _fits(requirement: str, value_of: Callable[[str], Any]) -> bool:
    for operator, wanted in ((" notin ", False), (" in ", True)):
        if operator in requirement:
            name, _, values = requirement.partition(operator)
            options = {value.strip() for value in values.strip().strip("()").split(",")}
            return (value_of(name.strip()) in options) is wanted
    for operator, wanted in (("!=", False), ("==", True), ("=", True)):
        if operator in requirement:
            name, _, value = requirement.partition(operator)
            return (value_of(name.strip()) == value.strip()) is wanted
    if requirement.startswith("!"):
        return value_of(requirement[1:]) is None
    return value_of(requirement) is not None


def field_at(manifest: Unstructured, path: str) -> Any:
    """The value at a dotted path, or an empty mapping."""
    value: Any = manifest
    for name in path.split("."):
        value = value.get(name, {})
    return value
