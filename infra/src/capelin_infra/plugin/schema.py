"""The package schema, from the resource types."""

import json
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any, cast

from capelin.api import Model

from capelin_infra.resource_types import PACKAGE, ResourceType, secrets_of

_REFERENCE = "#/$defs/"


def schema_json(version: str, kinds: Sequence[ResourceType]) -> str:
    """The schema in the format of the engine and of `pulumi package get-schema`."""
    return json.dumps(package_schema(version, kinds), indent=2)


def package_schema(version: str, kinds: Sequence[ResourceType]) -> dict[str, Any]:
    """The schema of the package."""
    types: dict[str, Any] = {}
    resources = {kind.token: _resource(kind, types) for kind in kinds}
    return {
        "name": PACKAGE,
        "displayName": "Capelin",
        "version": version,
        "description": "Environments for Cluster API: kind clusters, management clusters of "
        "processes, workload clusters.",
        "keywords": ["kubernetes", "cluster-api", "kind"],
        "license": "Apache-2.0",
        "repository": "https://github.com/capelin/capelin",
        "types": types,
        "resources": resources,
    }


def _resource(kind: ResourceType, types: dict[str, Any]) -> dict[str, Any]:
    inputs, required_inputs = _properties(kind.inputs, types)
    outputs, required = _properties(kind.state, types)
    for name in kind.fixed:
        inputs[name]["willReplaceOnChanges"] = True
    return {
        "description": cleandoc(kind.inputs.__doc__ or ""),
        "inputProperties": inputs,
        "requiredInputs": required_inputs,
        "properties": outputs,
        "required": required,
    }


def _properties(model: type[Model], types: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    schema = model.model_json_schema(by_alias=True)
    for name, definition in schema.get("$defs", {}).items():
        properties = cast("dict[str, Any]", definition.get("properties", {}))
        types[f"{PACKAGE}:index:{name}"] = {
            "type": "object",
            "description": definition.get("description", ""),
            "properties": {key: _property(value) for key, value in properties.items()},
            "required": definition.get("required", []),
        }
    secrets = secrets_of(model)
    properties = {
        name: _property(value) | ({"secret": True} if name in secrets else {})
        for name, value in schema["properties"].items()
    }
    return properties, schema.get("required", [])


def _property(schema: dict[str, Any]) -> dict[str, Any]:
    """A property of JSON schema in the dialect of Pulumi's."""
    described = {"description": schema["description"]} if "description" in schema else {}
    default = schema.get("default")
    if isinstance(default, str | int | bool):
        described["default"] = default
    return _type(schema) | described


def _type(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return _type(next(option for option in schema["anyOf"] if option.get("type") != "null"))
    if "$ref" in schema:
        return {"$ref": f"#/types/{PACKAGE}:index:{schema['$ref'].removeprefix(_REFERENCE)}"}
    match schema.get("type"):
        case "array":
            return {"type": "array", "items": _type(schema["items"])}
        case "object":
            return {"type": "object", "additionalProperties": _type(schema["additionalProperties"])}
        case kind:
            return {"type": kind}
