"""The OpenAPI document of hooks: what they are, where they are called, what travels."""

import json
import sys
import types
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from capelin.api import Marker, Model, Schema
from capelin.runtime.catalog import AnyHook
from capelin.runtime.messages import Go, Required

_REFERENCE = "#/components/schemas/"
_SIZES = ("minItems", "maxItems", "minProperties", "maxProperties")
_EXCLUSIVE = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}


def openapi_document(hooks: Iterable[AnyHook], *, title: str, version: str) -> Schema:
    """The document of some hooks, with every type that their messages are made of."""
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
                "description": "The call was answered; `status` says how it went.",
                "content": _json(components.reference(hook.response_type())),
            }
        },
    }
    if not hook.singleton:
        operation["parameters"] = [
            {
                "name": "name",
                "in": "path",
                "description": "The handler, by a name of its own among all of its server.",
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


class Components:
    """The schemas of types by name, each with all that it refers to."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}

    def reference(self, model: type[Model]) -> Schema:
        """A reference to a model, whose schema is then among the components."""
        package = getattr(sys.modules.get(model.__module__), "GO_PACKAGE", model.__module__)
        name = f"{package}.{model.__name__}".replace("/", ".")
        if name not in self.schemas:
            # A place for it before its fields are looked at: it may refer to itself.
            self.schemas[name] = {}
            self.schemas[name] = self._object(model)
        return {"$ref": _REFERENCE + name}

    def _object(self, model: type[Model]) -> Schema:
        fields = model.model_fields.values()
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
        declared: Any = field.annotation
        for said in field.metadata:
            declared = Annotated[declared, said]
        schema = self._type(declared)
        if "$ref" in schema:
            # Nothing may stand beside a reference in OpenAPI 3.0.
            schema = {"allOf": [schema]}
        if field.description:
            schema = {"description": field.description, **schema}
        return schema

    def _type(self, declared: Any) -> Schema:
        origin, arguments = get_origin(declared), get_args(declared)
        if origin is Annotated:
            return self._annotated(declared)
        if origin in (Union, types.UnionType):
            options = [self._type(option) for option in arguments if option is not type(None)]
            return options[0] if len(options) == 1 else {"anyOf": options}
        if origin is list:
            return {"type": "array", "items": self._type(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self._type(arguments[1])}
        if isinstance(declared, type) and issubclass(declared, Model):
            return self.reference(declared)
        return _plain(declared)

    def _annotated(self, declared: Any) -> Schema:
        kind, *said = get_args(declared)
        for go in said:
            if isinstance(go, Go):
                return self._of_go(go.type.replace("/", "."))
        options = [option for option in _options(kind) if option is not type(None)]
        if len(options) == 1:
            # Whether it may be missing is said by what requires it.
            declared = Annotated[(options[0], *said)]
        inner = self._type(kind)
        if "$ref" in inner:
            schema = inner
        elif inner.keys() & {"items", "additionalProperties"}:
            limits = _plain(Annotated[(get_origin(options[0]) or options[0], *said)])
            schema = inner | {key: limits[key] for key in _SIZES if key in limits}
        else:
            schema = _plain(declared)
        for marker in said:
            if isinstance(marker, Marker):
                marker.mark(schema)
        return schema

    def _of_go(self, name: str) -> Schema:
        if name not in self.schemas:
            self.schemas[name] = _go_schemas()[name]
            for other in _references(self.schemas[name]):
                self._of_go(other)
        return {"$ref": _REFERENCE + name}


def _options(declared: Any) -> tuple[Any, ...]:
    united = get_origin(declared) in (Union, types.UnionType)
    return get_args(declared) if united else (declared,)


def _plain(declared: Any) -> Schema:
    """The schema of a type that refers to no other, in the words of OpenAPI 3.0."""
    schema = TypeAdapter(declared).json_schema()
    schema.pop("title", None)
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if "enum" in schema:
        schema["enum"] = sorted((v for v in schema["enum"] if v is not None), key=str)
    for limit, exclusive in _EXCLUSIVE.items():
        if exclusive in schema:
            schema |= {limit: schema[exclusive], exclusive: True}
    return schema


@cache
def _go_schemas() -> dict[str, Schema]:
    """The types of Cluster API and Kubernetes that hooks carry as they are, by name."""
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
