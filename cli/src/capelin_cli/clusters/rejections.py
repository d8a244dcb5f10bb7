"""Requests that the API server or Cluster API rejects, in the words of the command line."""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from capelin.api.capi import ClusterClass
from capelin.client import ApiError, Invalid
from capelin.errors import InvalidInputError

_WEBHOOK: Final = re.compile(r'^admission webhook "[^"]+" denied the request: ')
_VARIABLE: Final = re.compile(
    r"^spec\.topology\.variables\[(?P<name>[^\]]+)\](?:\.value)?(?P<path>(?:\.\w+)*)"
)
# The value is the whole variable, which users have just typed.
_VALUE: Final = re.compile(r'^(?:Invalid|Unsupported) value: (?:"(?:[^"\\]|\\.)*"|[^:]*): ')


def rejected_cluster(
    error: ApiError, name: str, cluster_class: ClusterClass | None = None
) -> Exception:
    """The error for people if a Cluster is invalid. Any other error stays as it is.

    The ClusterClass has the schemas of the variables, which the hint describes.
    """
    if not isinstance(error, Invalid):
        return error
    causes = [
        (str(each.get("field") or ""), str(each.get("message") or "")) for each in error.causes
    ]
    variables = [
        (match["name"], match["path"])
        for field, _ in causes
        if (match := _VARIABLE.match(field)) is not None
    ]
    reasons = [f"{_field(field)}: {_VALUE.sub('', message)}." for field, message in causes]
    reason = " ".join(reasons) or _WEBHOOK.sub("", str(error))
    if not variables:
        return InvalidInputError(
            f"Cluster {name} is not valid.", reason=reason, hint="Change it, and try again."
        )
    return InvalidInputError(
        f"Variable {_path(*variables[0])} of cluster {name} has an invalid value.",
        reason=reason,
        hint=" ".join(
            f"{_path(*variable)} takes {description}."
            for variable in dict.fromkeys(variables)
            if (description := _described(*variable, cluster_class))
        ),
    )


def describe_schema(schema: Mapping[str, Any]) -> str:
    """The values that a schema accepts. Empty if it accepts all."""
    if choices := schema.get("enum"):
        return f"one of {', '.join(str(choice) for choice in choices if choice != '')}"
    kind = schema.get("type")
    limits = _range(schema.get("minimum"), schema.get("maximum"))
    fields = ", ".join(cast("dict[str, Any]", schema.get("properties") or {}))
    pattern = schema.get("pattern")
    descriptions = {
        "integer": f"an integer{limits}",
        "number": f"a number{limits}",
        "boolean": "true or false",
        "array": "a list",
        "object": f"an object with the fields {fields}" if fields else "an object",
        "string": f"a string that matches {pattern}" if pattern else "a string",
    }
    return descriptions.get(str(kind), "")


def _range(minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of at least {minimum}"
    return "" if maximum is None else f" of at most {maximum}"


def _described(name: str, path: str, cluster_class: ClusterClass | None) -> str:
    if cluster_class is None:
        return ""
    schemas = {
        **{
            variable.name: variable.definitions[0].schema_
            for variable in cluster_class.status.variables
            if variable.definitions
        },
        **{variable.name: variable.schema_ for variable in cluster_class.spec.variables},
    }
    if name not in schemas:
        return ""
    schema: dict[str, Any] = schemas[name].openapi_schema
    for field in filter(None, path.split(".")):
        schema = cast("dict[str, Any]", schema.get("properties") or {}).get(field) or {}
    return describe_schema(schema)


def _path(name: str, path: str) -> str:
    return f"{name}{path}"


def _field(field: str) -> str:
    variable = _VARIABLE.match(field)
    return field if variable is None else _path(variable["name"], variable["path"])
