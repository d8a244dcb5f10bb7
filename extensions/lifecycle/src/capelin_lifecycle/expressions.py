"""CEL as Kubernetes has it: expressions with Kubernetes' functions, compiled once, with bounds.

Google's C++ implementation judges them (decision 0120). It ends an expression after 10,000 steps,
but sets no bound to the size of values. So what lets values grow is counted here: `+` and `map`,
which are part of the language, and the functions, which are ours.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, cast

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional

from capelin_lifecycle.functions import QUANTITY, declarations, read_amount

MAX_LENGTH: Final = 4096
_MAX_ADDITIONS: Final = 32
_MAX_MAPS: Final = 3


class ExpressionError(ValueError):
    """An expression that cannot be compiled, or that has no value for an object."""


class Expression:
    """A compiled expression."""

    def __init__(self, text: str, compiled: Any) -> None:
        self.text = text
        self._compiled = compiled

    def evaluate(self, variables: Mapping[str, Any]) -> Any:
        """The value, as JSON has it.

        Raises:
            ExpressionError: there is no value for these variables.
        """
        try:
            value = self._compiled.eval(data=dict(variables))
        except (RuntimeError, TypeError, ValueError, MemoryError) as error:
            raise ExpressionError(_explain(str(error))) from None
        if value.type() == cel.Type.ERROR:
            raise ExpressionError(_explain(str(value.value())))
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


@lru_cache(maxsize=2048)
def compile_expression(text: str, variables: tuple[str, ...], *, boolean: bool) -> Expression:
    """Compile an expression over variables of any type.

    Raises:
        ExpressionError: it is not CEL, not a condition if `boolean` says that it has to be one, or
            could grow without bounds.
    """
    if problem := _growth(text):
        raise ExpressionError(problem)
    try:
        compiled = _environment(variables).compile(text)
    except RuntimeError as error:
        raise ExpressionError(_explain(str(error))) from None
    if boolean and compiled.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        raise ExpressionError(f"it gives {compiled.return_type()} instead of true or false")
    return Expression(text, compiled)


def as_amount(value: object) -> Decimal:
    """What an expression gave as an amount: a number, or a quantity as text or as `quantity()`.

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


def _growth(text: str) -> str | None:
    if len(text) > MAX_LENGTH:
        return f"an expression may have {MAX_LENGTH} characters"
    plain = re.sub(r"'(\\.|[^'\\])*'|\"(\\.|[^\"\\])*\"", "''", text)
    if plain.count("+") > _MAX_ADDITIONS:
        return f"an expression may have {_MAX_ADDITIONS} additions"
    if len(re.findall(r"\bmap\s*\(", plain)) > _MAX_MAPS:
        return f"an expression may call map {_MAX_MAPS} times"
    return None


def _explain(text: str) -> str:
    """The first line of an error, without what it calls the code and the place in the source."""
    line = text.split("\n", 1)[0]
    line = re.sub(r"^([A-Z_]+: )+", "", line)
    line = re.sub(r"^(ERROR: )?<input>:(-?\d+):(-?\d+): ", "", line)
    line = re.sub(r" \[[A-Z_]+\]$", "", line)
    return line.replace(" (in container '')", "")[:512]


@lru_cache(maxsize=32)
def _environment(variables: tuple[str, ...]) -> Any:
    return cel.NewEnv(
        variables=dict.fromkeys(variables, cel.Type.DYN),
        functions=declarations(),
        extensions=[ext_optional.ExtOptional()],
    )
