"""Kubernetes' CEL: expressions with Kubernetes' functions, compiled once.

Google's C++ implementation evaluates them (decision 0120). It ends an expression after 10,000
steps, but bounds neither the time of a step nor the size of values. So expressions of policies are
compiled and evaluated in the sandbox only.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, cast

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional

from capelin_lifecycle.sandbox.functions import QUANTITY, declarations, read_amount

VARIABLE_TYPES: Final[Mapping[str, Any]] = {
    "fromVersion": cel.Type.STRING,
    "now": cel.Type.TIMESTAMP,
    "object": cel.Type.DYN,
    "templates": cel.Type.List(cel.Type.DYN),
    "toVersion": cel.Type.STRING,
    "variables": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
}
"""The variables of all expressions. A time has to be declared: the library passes none as `DYN`."""


class ExpressionError(ValueError):
    """An expression that cannot be compiled, or that has no value for an object."""


class Expression:
    def __init__(self, text: str, variables: tuple[str, ...], compiled: Any) -> None:
        self.text = text
        self._times = [name for name in variables if VARIABLE_TYPES[name] == cel.Type.TIMESTAMP]
        self._compiled = compiled

    def evaluate(self, variables: Mapping[str, Any]) -> Any:
        """The value in JSON's types. Times among the variables may be texts.

        Raises:
            ExpressionError: the expression has no value for these variables.
        """
        data = dict(variables)
        for name in self._times:
            if isinstance(data[name], str):
                data[name] = datetime.fromisoformat(data[name])
        try:
            value = self._compiled.eval(data=data)
        except (RuntimeError, TypeError, ValueError) as error:
            raise _problem(str(error)) from None
        if value.type() == cel.Type.ERROR:
            raise _problem(str(value.value()))
        return value.plain_value()

    def is_true(self, variables: Mapping[str, Any]) -> bool:
        """Whether the expression is true.

        Raises:
            ExpressionError: it is neither true nor false.
        """
        value = self.evaluate(variables)
        if not isinstance(value, bool):
            raise ExpressionError(f"it gives {type(value).__name__} instead of true or false")
        return value


@lru_cache(maxsize=256)
def compile_expression(text: str, variables: tuple[str, ...], *, boolean: bool) -> Expression:
    """Compile an expression over some of the known variables.

    Raises:
        ExpressionError: it is not CEL, or is not a condition although `boolean` is set.
    """
    try:
        compiled = _environment(variables).compile(text)
    except RuntimeError as error:
        raise _problem(str(error)) from None
    if boolean and compiled.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        raise ExpressionError(f"it gives {compiled.return_type()} instead of true or false")
    return Expression(text, variables, compiled)


def as_amount(value: object) -> Decimal:
    """The amount that an expression gave: a number, or a quantity as text or as `quantity()`.

    Raises:
        ExpressionError: it is neither.
    """
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get(QUANTITY)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ExpressionError("it gives neither a number nor a quantity")
    try:
        return read_amount(str(value))
    except ValueError as error:
        raise ExpressionError(str(error)) from None


def _problem(text: str) -> Exception:
    """The first line of an error, without the position in the source."""
    line = text.split("\n", 1)[0]
    line = re.sub(r"^([A-Z_]+: )+", "", line)
    line = re.sub(r"^(ERROR: )?<input>:(-?\d+):(-?\d+): ", "", line)
    line = re.sub(r" \[[A-Z_]+\]$", "", line)
    if not line or "bad_alloc" in line:
        # Of Python, which has no message, and of C++.
        return MemoryError()
    return ExpressionError(line.replace(" (in container '')", "")[:512])


@lru_cache(maxsize=32)
def _environment(variables: tuple[str, ...]) -> Any:
    return cel.NewEnv(
        variables={name: VARIABLE_TYPES[name] for name in variables},
        functions=declarations(),
        extensions=[ext_optional.ExtOptional()],
    )
