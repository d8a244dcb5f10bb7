"""The variables of a request, as its author's type, for each template."""

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Generic, TypeVar, Union, cast, get_args, get_origin

import orjson
from annotated_types import GroupedMetadata
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo

from capelin.api import Marker, Rule, Schema, Unstructured
from capelin.runtime.messages import explain
from capelin.runtime.results import Failure
from capelin.runtime.topology.patches import is_object
from capelin.runtime.topology.templates import BUILTIN
from capelin.runtime.v1alpha1 import Variable

VariablesT = TypeVar("VariablesT", bound=BaseModel)


def read_variables(model: type[VariablesT], values: Mapping[str, Any]) -> VariablesT:
    """Values as the API server takes them: of exactly the types that the schema says.

    Variables that the type does not have belong to others.

    Raises:
        Failure: a value is missing or does not fit.
    """
    try:
        return model.model_validate(values, strict=True, extra="ignore")
    except ValidationError:
        # Only JSON may have a date, an address or a member of an enum as a text. To write it once
        # more takes its time, so variables that have no such types go without.
        try:
            return model.model_validate_json(orjson.dumps(values), strict=True, extra="ignore")
        except ValidationError as error:
            raise Failure(f"the variables do not fit their schema: {explain(error)}") from None


class RequestVariables(Generic[VariablesT]):
    """The variables of one request, and what each of its templates has of its own."""

    def __init__(self, model: type[VariablesT], variables: Iterable[Variable]) -> None:
        self._model = model
        self._values = {variable.name: variable.value for variable in variables}
        self._builtin = self._values.pop(BUILTIN, {})
        self._shared: VariablesT | None = None

    def builtin(self, own: Iterable[Variable]) -> Any:
        """Cluster API's own variables for a template."""
        for variable in own:
            if variable.name == BUILTIN:
                return _merged(self._builtin, variable.value)
        return self._builtin

    def typed(self, own: Iterable[Variable]) -> VariablesT:
        """The author's variables for a template.

        Raises:
            Failure: they do not fit their type.
        """
        values = {variable.name: variable.value for variable in own if variable.name != BUILTIN}
        if values:
            return read_variables(self._model, self._values | values)
        if self._shared is None:
            self._shared = read_variables(self._model, self._values)
        return self._shared


def _merged(one: Any, other: Any) -> Any:
    """Two objects with the fields of both, at every depth; the other's count."""
    if not (is_object(one) and is_object(other)):
        return other
    return one | {
        key: _merged(one[key], value) if key in one else value for key, value in other.items()
    }


_LEAF = frozenset(
    [
        "type",
        "enum",
        "format",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "description",
    ]
)
"""What the schema of a value can say."""

_SIZES = {list: ("minItems", "maxItems"), dict: ("minProperties", "maxProperties")}


class VariableSchemaError(TypeError):
    """Variables that no ClusterClass can have; tells of every such place."""


def variable_schemas(model: type[BaseModel]) -> list[Unstructured]:
    """The variables that the fields of a type are, as `DiscoverVariables` answers them.

    Raises:
        VariableSchemaError: the type says something that the schema of a variable cannot.
    """
    schemas = _Schemas()
    found = [
        {
            "name": _wire(name, field),
            "required": field.is_required(),
            "schema": {"openAPIV3Schema": schemas.field(field, _wire(name, field))},
        }
        for name, field in model.model_fields.items()
    ]
    if schemas.problems:
        raise VariableSchemaError(
            f"{model.__name__} cannot be the variables of a ClusterClass: "
            + "; ".join(schemas.problems)
        )
    return found


def _wire(name: str, field: FieldInfo) -> str:
    return field.serialization_alias or name


class _Schemas:
    """Makes schemas, and notes what they cannot say with the path to it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._open: list[type[BaseModel]] = []

    def field(self, field: FieldInfo, path: str) -> Schema:
        declared: Any = field.annotation
        for said in field.metadata:
            declared = Annotated[declared, said]
        schema = self._type(declared, path)
        if not schema:
            return schema
        if field.description:
            schema["description"] = inspect.cleandoc(field.description)
        if field.examples:
            schema["example"] = field.examples[0]
        if not field.is_required():
            default = TypeAdapter(declared).dump_python(
                field.get_default(call_default_factory=True),
                mode="json",
                by_alias=True,
                exclude_none=True,
            )
            # Cluster API writes defaults into every Cluster; what is empty is not worth that.
            if default not in (None, [], {}):
                schema["default"] = default
        return schema

    def _type(self, declared: Any, path: str) -> Schema:
        kind, said = _bare(declared)
        schema = self._shape(kind, said, path)
        for marker in said:
            if isinstance(marker, Marker):
                marker.mark(schema)
        return schema

    def _shape(self, kind: Any, said: list[Any], path: str) -> Schema:
        if kind is Any:
            return {"x-kubernetes-preserve-unknown-fields": True}
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return self._object(kind, path)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is list:
            items = self._type(arguments[0], f"{path}[]")
            return {"type": "array", "items": items, **_sizes(list, said)}
        if origin is dict:
            return self._map(arguments, said, path)
        if origin in (Union, types.UnionType):
            return self._union(arguments, path)
        return self._leaf(kind, said, path)

    def _union(self, options: tuple[Any, ...], path: str) -> Schema:
        if {*options} == {int, str}:
            return {"x-kubernetes-int-or-string": True}
        return self._note(path, "is of several types; only int | str can be")

    def _object(self, model: type[BaseModel], path: str) -> Schema:
        if model in self._open:
            return self._note(path, f"is a {model.__name__} within itself, without end")
        self._open.append(model)
        fields = model.model_fields.items()
        schema: Schema = {
            "type": "object",
            "properties": {
                _wire(name, field): self.field(field, f"{path}.{_wire(name, field)}")
                for name, field in fields
            },
        }
        if required := [_wire(name, field) for name, field in fields if field.is_required()]:
            schema["required"] = required
        if model.__doc__:
            schema["description"] = inspect.cleandoc(model.__doc__)
        rules: tuple[Rule, ...] = getattr(model, "rules", ())
        for rule in rules:
            rule.mark(schema)
        self._open.pop()
        return schema

    def _map(self, arguments: tuple[Any, ...], said: list[Any], path: str) -> Schema:
        key, value = arguments
        if key is not str:
            return self._note(path, "is a map whose keys are not plain strings")
        values = self._type(value, f"{path}.*")
        if values == {"x-kubernetes-preserve-unknown-fields": True}:
            return {"type": "object", **values}
        return {"type": "object", "additionalProperties": values, **_sizes(dict, said)}

    def _leaf(self, kind: Any, said: list[Any], path: str) -> Schema:
        try:
            schema: Schema = TypeAdapter(_annotated(kind, said)).json_schema()
        except PydanticInvalidForJsonSchema:
            return self._note(path, f"is a {kind}, which JSON does not have")
        schema.pop("title", None)
        if "const" in schema:
            schema["enum"] = [schema.pop("const")]
        for bound in ("minimum", "maximum"):
            exclusive = f"exclusive{bound.capitalize()}"
            if exclusive in schema:
                schema |= {bound: schema[exclusive], exclusive: True}
            if schema.get(bound, 0) % 1:
                return self._note(path, f"has a {bound} that is no whole number")
        if unknown := sorted(schema.keys() - _LEAF):
            return self._note(path, f"says {', '.join(unknown)}, which a variable cannot")
        return schema

    def _note(self, path: str, problem: str) -> Schema:
        self.problems.append(f"{path} {problem}")
        return {}


def _bare(declared: Any) -> tuple[Any, list[Any]]:
    """A type without `Annotated` and `None`, and what was said of it."""
    said: list[Any] = []
    while True:
        origin, arguments = get_origin(declared), get_args(declared)
        if origin is Annotated:
            declared, said = arguments[0], [*_each(arguments[1:]), *said]
        elif origin in (Union, types.UnionType) and type(None) in arguments:
            some = tuple(option for option in arguments if option is not type(None))
            declared = cast("Any", Union)[some]
        else:
            return declared, said


def _each(said: Iterable[Any]) -> Iterator[Any]:
    for one in said:
        if isinstance(one, FieldInfo):
            yield from _each(one.metadata)
        elif isinstance(one, GroupedMetadata):
            yield from one
        else:
            yield one


def _annotated(kind: Any, said: list[Any]) -> Any:
    for one in said:
        kind = Annotated[kind, one]
    return kind


def _sizes(kind: type, said: list[Any]) -> Schema:
    schema = TypeAdapter(_annotated(kind, said)).json_schema()
    return {key: schema[key] for key in _SIZES[kind] if key in schema}
