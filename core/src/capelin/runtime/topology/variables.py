"""The variables of a request, as its author's type, for each template."""

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from capelin.runtime.messages import explain
from capelin.runtime.topology.builtins import BUILTIN
from capelin.runtime.topology.patches import is_object
from capelin.runtime.v1alpha1 import Variable
from capelin.runtime.verdicts import Failure

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
