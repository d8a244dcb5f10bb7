"""The variables of a ClusterClass: their schemas, and their values in a request."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar, get_args

import orjson
from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo

from capelin.api import BareType, Rule, Schema, SchemaWalker, Unstructured, described_fields
from capelin.runtime.messages import explain
from capelin.runtime.results import Failure
from capelin.runtime.topology.patches import is_object
from capelin.runtime.topology.templates import BUILTIN
from capelin.runtime.v1alpha1 import Variable

VariablesT = TypeVar("VariablesT", bound=BaseModel)


def read_variables(model: type[VariablesT], values: Mapping[str, Any]) -> VariablesT:
    """Validate values like the API server: with exactly the types of the schema.

    This ignores variables of others, which the type does not have.

    Raises:
        Failure: A value is missing or does not fit.
    """
    try:
        return model.model_validate(values, strict=True, extra="ignore")
    except ValidationError:
        # Only JSON may have a date, an address or a member of an enum as a string. Writing it again
        # takes time, so try without it first.
        try:
            return model.model_validate_json(orjson.dumps(values), strict=True, extra="ignore")
        except ValidationError as error:
            raise Failure(f"the variables do not fit their schema: {explain(error)}") from None


class RequestVariables(Generic[VariablesT]):
    """The variables of one request, and the specific ones of each template."""

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
            Failure: They do not fit their type.
        """
        values = {variable.name: variable.value for variable in own if variable.name != BUILTIN}
        if values:
            return read_variables(self._model, self._values | values)
        if self._shared is None:
            self._shared = read_variables(self._model, self._values)
        return self._shared


def _merged(base: Any, other: Any) -> Any:
    """Merges two objects at every depth. The values of the second take precedence."""
    if not (is_object(base) and is_object(other)):
        return other
    return base | {
        key: _merged(base[key], value) if key in base else value for key, value in other.items()
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
"""The keywords that the schema of a variable supports."""

_ANYTHING: Schema = {"x-kubernetes-preserve-unknown-fields": True}


class VariableSchemaError(TypeError):
    """Variables that no ClusterClass supports. The message lists all problems."""


def variable_schemas(model: type[BaseModel]) -> list[Unstructured]:
    """The variables that the fields of a type define, for the response to `DiscoverVariables`.

    Raises:
        VariableSchemaError: The type has a constraint that the schema of a variable cannot express.
    """
    schemas = _Schemas()
    found = [
        {
            "name": _wire(name, field),
            "required": field.is_required(),
            "schema": {"openAPIV3Schema": schemas.field(field, _wire(name, field))},
        }
        for name, field in described_fields(model).items()
    ]
    if schemas.problems:
        raise VariableSchemaError(
            f"{model.__name__} cannot be the variables of a ClusterClass: "
            + "; ".join(schemas.problems)
        )
    return found


def _wire(name: str, field: FieldInfo) -> str:
    return field.serialization_alias or name


class _Schemas(SchemaWalker):
    """The dialect of ClusterClass variables."""

    def field(self, field: FieldInfo, path: str) -> Schema:
        bare = BareType.of(field.annotation, field.metadata)
        schema = self.of_type(bare, path)
        if not schema:
            return schema
        if field.description:
            schema["description"] = inspect.cleandoc(field.description)
        if field.examples:
            schema["example"] = field.examples[0]
        if not field.is_required():
            default = field.get_default(call_default_factory=True)
            if default is not None:
                default = bare.on_the_wire(default)
            # Cluster API writes defaults into every Cluster. An empty one is not worth that.
            if default not in (None, [], {}):
                schema["default"] = default
        return schema

    def _model(self, model: type[BaseModel], path: str) -> Schema:
        if model in self._open:
            return self._problem(path, f"is a {model.__name__} within itself, without end")
        self._open.append(model)
        fields = described_fields(model).items()
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

    def _map(self, bare: BareType, path: str) -> Schema:
        key, value = get_args(bare.type)
        if key is not str:
            return self._problem(path, "is a map whose keys are not plain strings")
        values = self._item(value, f"{path}.*")
        if values == _ANYTHING:
            return {"type": "object", **values}
        limits = bare.limits(dict[str, Any], "minProperties", "maxProperties")
        return {"type": "object", "additionalProperties": values, **limits}

    def _union(self, bare: BareType, path: str) -> Schema:
        if {*get_args(bare.type)} == {int, str}:
            return {"x-kubernetes-int-or-string": True}
        return self._problem(path, "has several types, of which only int | str is allowed")

    def _leaf(self, bare: BareType, path: str) -> Schema:
        if bare.type is Any:
            return {**_ANYTHING}
        try:
            schema = super()._leaf(bare, path)
        except PydanticInvalidForJsonSchema:
            return self._problem(path, f"is a {bare.type}, which JSON does not have")
        for bound in ("minimum", "maximum"):
            if schema.get(bound, 0) % 1:
                return self._problem(path, f"has a {bound} that is not a whole number")
        if unknown := sorted(schema.keys() - _LEAF):
            return self._problem(path, f"has {', '.join(unknown)}, which a variable cannot")
        return schema

    def _problem(self, path: str, problem: str) -> Schema:
        self.problems.append(f"{path} {problem}")
        return {}
