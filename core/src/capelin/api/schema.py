"""From types to schemas: one walker, and the dialect of CRDs."""

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt
from pydantic import BaseModel, TypeAdapter, WithJsonSchema
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo

from capelin.api.fields import FreeForm, format_duration
from capelin.api.model import Model
from capelin.api.objects import BaseObject
from capelin.api.rules import Immutable, Marker, Rule, Schema, kept

_CONSTRAINTS = {
    *("enum", "format", "pattern", "minLength", "maxLength", "multipleOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
_BOUNDS = ({"enum"}, {"maxLength"}, {"minimum", "maximum"}, {"maxItems"}, {"maxProperties"})
_EXACT = 2**53
_UNBOUNDED = {
    "string": "a string without a bound: use Annotated[str, MaxLen(n)]",
    "integer": "a number without bounds: use Int32, or Ge(n) and Le(n)",
    "number": "a number without bounds: use Ge(n) and Le(n)",
    "array": "a list without a bound: use Annotated[list[...], MaxLen(n)]",
    "map": "a map without a bound: use Annotated[dict[str, ...], MaxLen(n)]",
}
_PRESENCE = "write `= None`, or omit `| None`"


def described_fields(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """The fields of a model with their descriptions: the explicit ones, else the docstrings."""
    fields = model.model_fields
    for name, info in fields.items():
        if info.description is None:
            info.description = _docstring(model, name)
    return fields


def _docstring(model: type[BaseModel], name: str) -> str | None:
    for base in model.__mro__:
        if name in inspect.get_annotations(base):
            return _docstrings(base.__module__).get((base.__qualname__, name))
    return None


@cache
def _docstrings(module: str) -> Mapping[tuple[str, str], str]:
    """All docstrings of fields in a module, by class and field. Empty without a source file."""
    file: Any = getattr(sys.modules.get(module), "__file__", None)
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, TypeError):
        return {}
    return dict(_found(tree, ""))


def _found(node: ast.AST, prefix: str) -> Iterator[tuple[tuple[str, str], str]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef(name=name):
                yield from _of_class(child, prefix + name)
                yield from _found(child, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from _found(child, f"{prefix}{name}.<locals>.")
            case _:
                yield from _found(child, prefix)


def _of_class(node: ast.ClassDef, name: str) -> Iterator[tuple[tuple[str, str], str]]:
    for statement, following in zip(node.body, node.body[1:], strict=False):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=field)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield (name, field), inspect.cleandoc(text)
            case _:
                pass


@dataclass
class SchemaWalker:
    """Walks a type, builds its schema and collects the problems. Each dialect is a subclass.

    The dialects are CRDs (here), variables of a ClusterClass and the OpenAPI document of hooks
    (both in `capelin.runtime`).
    """

    problems: list[str] = field(default_factory=list[str])
    _open: list[type[BaseModel]] = field(default_factory=list[type[BaseModel]])

    def of_type(self, bare: "BareType", path: str) -> Schema:
        schema = self._shape(bare, path)
        for marker in bare.markers:
            try:
                marker.mark(schema)
            except ValueError as error:
                self._note(path, str(error))
        return schema

    def _shape(self, bare: "BareType", path: str) -> Schema:
        kind, origin = bare.type, get_origin(bare.type)
        if bare.has_schema:
            return self._leaf(bare, path)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return self._model(kind, path)
        if origin is list:
            return {
                "type": "array",
                **bare.limits(list[Any], "minItems", "maxItems"),
                "items": self._item(get_args(kind)[0], f"{path}[]"),
            }
        if origin is dict:
            return self._map(bare, path)
        if origin in {Union, UnionType}:
            return self._union(bare, path)
        return self._leaf(bare, path)

    def _item(self, annotation: Any, path: str) -> Schema:
        return self.of_type(BareType.of(annotation, ()), path)

    def _model(self, model: type[Any], path: str) -> Schema:
        raise NotImplementedError

    def _map(self, bare: "BareType", path: str) -> Schema:
        raise NotImplementedError

    def _union(self, bare: "BareType", path: str) -> Schema:
        raise NotImplementedError

    def _leaf(self, bare: "BareType", path: str) -> Schema:  # noqa: ARG002 - dialects note it
        """The schema of a type without parts, in the words of OpenAPI v3.0."""
        schema: Schema = bare.adapter(bare.type).json_schema()
        schema.pop("title", None)
        if "const" in schema:
            schema["enum"] = [schema.pop("const")]
        # OpenAPI v3.0 has a flag where JSON schema has a second number.
        for bound, tighter in (("minimum", max), ("maximum", min)):
            open_end = schema.pop(f"exclusive{bound.capitalize()}", None)
            if open_end is not None:
                schema[bound] = tighter(open_end, schema.get(bound, open_end))
                schema[f"exclusive{bound.capitalize()}"] = schema[bound] == open_end
        return schema

    def _note(self, path: str, problem: str) -> None:
        self.problems.append(f"{path}: {problem}")


class Structure(SchemaWalker):
    """The dialect of CRDs: structural schemas, with a bound on everything."""

    def of_kind(self, kind: type[BaseObject]) -> Schema:
        """The schema of a whole object. The API server has its own schema of the metadata."""
        schema = self._object(kind, "", passing_over={"metadata"})
        schema["properties"] = {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            **schema["properties"],
        }
        return schema

    def _object(self, model: type[Model], path: str, passing_over: Iterable[str] = ()) -> Schema:
        if model in self._open:
            self._note(path, f"{model.__name__} contains itself, and a CRD has no recursion")
            return {"type": "object"}
        self._open.append(model)
        schema: Schema = {"type": "object", "properties": {}}
        if model.__doc__:
            schema = {"description": inspect.cleandoc(model.__doc__), **schema}
        rules = list(model.rules)
        required: list[str] = []
        for name, info in described_fields(model).items():
            if name in passing_over:
                continue
            wire = info.serialization_alias or name
            bare = BareType.of(info.annotation, info.metadata)
            field_schema = self._field(info, bare, f"{path}.{wire}" if path else wire)
            schema["properties"][wire] = field_schema
            if info.is_required():
                required.append(wire)
            elif "default" not in field_schema:
                frozen = (m for m in bare.markers if isinstance(m, Immutable))
                rules += [kept(wire, marker.message) for marker in frozen]
        if required:
            schema["required"] = sorted(required)
        for rule in rules:
            rule.mark(schema)
        self._open.pop()
        return schema

    def _field(self, info: FieldInfo, bare: "BareType", path: str) -> Schema:
        schema = self.of_type(bare, path)
        if info.description:
            schema = _in_order({**schema, "description": inspect.cleandoc(info.description)})
        if info.is_required():
            if bare.optional:
                self._note(path, f"may be None but is required: {_PRESENCE}")
            return schema
        default = info.get_default(call_default_factory=True)
        if default is None:
            return schema
        if bare.optional:
            self._note(path, f"has a default, so it cannot be None: {_PRESENCE}")
        # Rules are tried on a default as it stands here, so it has to be whole.
        shown = _without_empty(bare.on_the_wire(default))
        if shown not in ([], {}):
            schema["default"] = shown
        return schema

    def of_type(self, bare: "BareType", path: str) -> Schema:
        """The schema of a type. Reports a type without a bound."""
        schema = super().of_type(bare, path)
        if missing := _missing(schema):
            self._note(path, missing)
        return _in_order(schema)

    def _model(self, model: type[Any], path: str) -> Schema:
        return self._object(model, path)

    def _item(self, annotation: Any, path: str) -> Schema:
        bare = BareType.of(annotation, ())
        if bare.optional:
            self._note(path, "may not be None")
        return self.of_type(bare, path)

    def _map(self, bare: "BareType", path: str) -> Schema:
        key, value = get_args(bare.type)
        if key is not str:
            self._note(path, "the keys of a map are plain strings in a CRD: use `dict[str, ...]`")
        schema: Schema = {"type": "object", **bare.limits(dict[str, Any], *_SIZES)}
        if not any(isinstance(marker, FreeForm) for marker in bare.markers):
            schema["additionalProperties"] = self._item(value, f"{path}.*")
        return schema

    def _union(self, bare: "BareType", path: str) -> Schema:
        branches = [self._item(branch, path) for branch in get_args(bare.type)]
        if sorted(str(branch.get("type")) for branch in branches) != ["integer", "string"]:
            self._note(path, "the only union that a CRD's schema can express is int | str")
            return {"type": "object"}
        both = {
            key: constraint
            for branch in branches
            for key, constraint in branch.items()
            if key in _CONSTRAINTS
        }
        both.pop("format", None)
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            **both,
            "x-kubernetes-int-or-string": True,
        }

    def _leaf(self, bare: "BareType", path: str) -> Schema:
        try:
            schema = super()._leaf(bare, path)
        except PydanticInvalidForJsonSchema:
            schema = {"$ref": ""}
        if schema.keys() - _CONSTRAINTS - {"type", "description"}:
            self._note(path, f"a CRD's schema cannot express {bare.type!r}")
            return {"type": "object"}
        for marker in bare.timespans():
            marker.mark(schema)
        return schema


_SIZES = ("minProperties", "maxProperties")


@dataclass(frozen=True)
class BareType:
    """A type without `Annotated` and `None`, and their metadata."""

    type: Any
    metadata: tuple[Any, ...]
    optional: bool

    @classmethod
    def of(cls, annotation: Any, metadata: Iterable[Any]) -> "BareType":
        annotations, optional = tuple(metadata), False
        while True:
            origin, args = get_origin(annotation), get_args(annotation)
            if origin is Annotated:
                annotation, annotations = args[0], (*args[1:], *annotations)
            elif origin in {Union, UnionType} and NoneType in args:
                others = tuple(argument for argument in args if argument is not NoneType)
                annotation, optional = cast("Any", Union)[others], True
            else:
                return cls(annotation, tuple(_each(annotations)), optional)

    @property
    def markers(self) -> list[Marker]:
        return [marker for marker in self.metadata if isinstance(marker, Marker)]

    @property
    def has_schema(self) -> bool:
        return any(isinstance(marker, WithJsonSchema) for marker in self.metadata)

    def adapter(self, kind: Any) -> TypeAdapter[Any]:
        """The pydantic adapter for a type, with the metadata of this one."""
        return TypeAdapter(
            cast("Any", Annotated)[(kind, *self.metadata)] if self.metadata else kind
        )

    def limits(self, kind: Any, *keys: str) -> Schema:
        schema = self.adapter(kind).json_schema()
        return {key: schema[key] for key in keys if key in schema}

    def on_the_wire(self, value: Any) -> Any:
        return self.adapter(self.type).dump_python(
            value, mode="json", by_alias=True, exclude_none=True
        )

    def timespans(self) -> Iterator[Rule]:
        """The bounds of a duration, which a schema can express only as rules."""
        for marker in self.metadata:
            match marker:
                case Ge(ge=timedelta() as span):
                    yield _bound(">=", span, "at least")
                case Gt(gt=timedelta() as span):
                    yield _bound(">", span, "more than")
                case Le(le=timedelta() as span):
                    yield _bound("<=", span, "at most")
                case Lt(lt=timedelta() as span):
                    yield _bound("<", span, "less than")
                case _:
                    pass


def _bound(comparison: str, span: timedelta, words: str) -> Rule:
    text = format_duration(span)
    return Rule(f"duration(self) {comparison} duration('{text}')", f"must be {words} {text}")


def _each(metadata: Iterable[Any]) -> Iterator[Any]:
    for entry in metadata:
        if isinstance(entry, FieldInfo):
            yield from _each(entry.metadata)
        elif isinstance(entry, GroupedMetadata):
            yield from _each(entry)
        else:
            yield entry


def _in_order(schema: Schema) -> Schema:
    """Pydantic's order is of no use to readers."""
    first = {key: schema[key] for key in ("description", "type") if key in schema}
    return first | schema


def _without_empty(value: Any) -> Any:
    """An empty list or object is the same as none."""
    if isinstance(value, dict):
        parts = {key: _without_empty(part) for key, part in cast("dict[str, Any]", value).items()}
        return {key: part for key, part in parts.items() if part not in ([], {})}
    return value


def _missing(schema: Schema) -> str | None:
    """The missing bound. Without bounds the API server cannot estimate the cost of rules."""
    if {"x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"} & schema.keys():
        return None
    if "type" not in schema:
        return "any type is allowed: use AnyValue or AnyObject if that is the intention"
    if any(abs(schema.get(limit, 0)) > _EXACT for limit in ("minimum", "maximum")):
        return "limits beyond 2**53 are not exact in JSON: use Int64"
    if schema.get("format") == "date-time" or any(b <= schema.keys() for b in _BOUNDS):
        return None
    return _UNBOUNDED.get("map" if "additionalProperties" in schema else schema["type"])
