"""The OpenAPI document of hooks: their descriptions, paths and messages."""

import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, cast, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from capelin.api import BareType, Schema, SchemaWalker, described_fields
from capelin.runtime.catalog import AnyHook
from capelin.runtime.messages import Go, Required

_REFERENCE = "#/components/schemas/"


def openapi_document(hooks: Iterable[AnyHook], *, title: str, version: str) -> Schema:
    """The document of some hooks, with every type in their messages."""
    components = Components()
    ordered = sorted(hooks, key=lambda hook: (hook.id.group, hook.id.version, hook.id.name))
    paths = {
        hook.id.path(None if hook.singleton else "{name}"): {"post": _operation(hook, components)}
        for hook in ordered
    }
    return {
        "openapi": "3.0.0",
        "info": {
            "title": title,
            "version": version,
            "license": {
                "name": "Apache 2.0",
                "url": "http://www.apache.org/licenses/LICENSE-2.0.html",
            },
        },
        "paths": paths,
        "components": {"schemas": dict(sorted(components.schemas.items()))},
    }


def _operation(hook: AnyHook, components: "Components") -> Schema:
    operation: Schema = {
        "tags": [hook.tag],
        "summary": hook.summary,
        "description": hook.description(),
        "operationId": _operation_id(hook),
        "requestBody": {
            "required": True,
            "content": _json(components.reference(hook.request_type())),
        },
        "responses": {
            "200": {
                "description": "The call was answered. `status` has its result.",
                "content": _json(components.reference(hook.response_type())),
            }
        },
    }
    if not hook.singleton:
        operation["parameters"] = [
            {
                "name": "name",
                "in": "path",
                "description": "The handler, by a name that is unique in its server.",
                "required": True,
                "schema": {"type": "string"},
            }
        ]
    if hook.deprecated:
        operation["deprecated"] = True
        operation["x-deprecation"] = {
            "release": hook.deprecated.release,
            "on": hook.deprecated.on.isoformat(),
            "replacedBy": hook.deprecated.replaced_by,
        }
    return operation


def _operation_id(hook: AnyHook) -> str:
    first, *rest = hook.id.group.removesuffix(".x-k8s.io").split(".")
    words = [*rest, hook.id.version, hook.id.name]
    return first + "".join(word[:1].upper() + word[1:] for word in words)


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


class Components(SchemaWalker):
    """The dialect of OpenAPI: models are references to named schemas."""

    def __init__(self) -> None:
        super().__init__()
        self.schemas: dict[str, Schema] = {}

    def reference(self, model: type[BaseModel]) -> Schema:
        """A reference to a model. Adds the schema of the model to the components."""
        package = getattr(sys.modules.get(model.__module__), "GO_PACKAGE", model.__module__)
        name = f"{package}.{model.__name__}".replace("/", ".")
        if name not in self.schemas:
            # Reserved before its fields are read: it may refer to itself.
            self.schemas[name] = {}
            self.schemas[name] = self._object(model)
        return {"$ref": _REFERENCE + name}

    def _object(self, model: type[BaseModel]) -> Schema:
        fields = described_fields(model).values()
        schema: Schema = {
            "type": "object",
            "description": (model.__doc__ or "").strip(),
            "properties": {
                str(field.serialization_alias): self._property(field) for field in fields
            },
        }
        required = [
            str(field.serialization_alias)
            for field in fields
            if field.is_required() or any(isinstance(marker, Required) for marker in field.metadata)
        ]
        return {**schema, "required": required} if required else schema

    def _property(self, field: FieldInfo) -> Schema:
        schema = self.of_type(BareType.of(field.annotation, field.metadata), "")
        if "$ref" in schema:
            # OpenAPI 3.0 allows no other keys next to a reference.
            schema = {"allOf": [schema]}
        if field.description:
            schema = {"description": field.description, **schema}
        return schema

    def _shape(self, bare: BareType, path: str) -> Schema:
        for marker in bare.metadata:
            if isinstance(marker, Go):
                return self._of_go(marker.type.replace("/", "."))
        return super()._shape(bare, path)

    def _model(self, model: type[BaseModel], path: str) -> Schema:  # noqa: ARG002
        return self.reference(model)

    def _map(self, bare: BareType, path: str) -> Schema:
        values = self._item(get_args(bare.type)[1], path)
        limits = bare.limits(dict[str, Any], "minProperties", "maxProperties")
        return {"type": "object", "additionalProperties": values, **limits}

    def _union(self, bare: BareType, path: str) -> Schema:
        return {"anyOf": [self._item(option, path) for option in get_args(bare.type)]}

    def _leaf(self, bare: BareType, path: str) -> Schema:
        schema = super()._leaf(bare, path)
        if "enum" in schema:
            schema["enum"] = sorted((v for v in schema["enum"] if v is not None), key=str)
        return schema

    def _of_go(self, name: str) -> Schema:
        if name not in self.schemas:
            self.schemas[name] = _go_schemas()[name]
            for other in _references(self.schemas[name]):
                self._of_go(other)
        return {"$ref": _REFERENCE + name}


@cache
def _go_schemas() -> dict[str, Schema]:
    """The types of Cluster API and Kubernetes that hooks carry unchanged, by name."""
    return json.loads((files("capelin.runtime.v1alpha1") / "objects.json").read_bytes())


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in cast("dict[str, Any]", schema).items():
            if key == "$ref":
                yield str(value).removeprefix(_REFERENCE)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for item in cast("list[Any]", schema):
            yield from _references(item)
