"""What a schema says beyond its types: rules in CEL that the API server checks on every write.

A rule stands on a field, or on a class for what concerns several fields:

    class Spec(Model):
        version: KubernetesVersion
        backend: Annotated[Literal["Processes", "Pods"], immutable()]

        rules = (
            rule(f"{minor('self.version')} - {minor('oldSelf.version')} in [0, 1]",
                 "upgrades go one minor version at a time"),
        )

The API server alone checks rules: building an object in Python checks types and bounds only.
Inside a rule, fields have their names on the wire.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

Schema = dict[str, Any]
"""An OpenAPI v3 schema as CRDs take it."""

Reason = Literal[
    "FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"
]
"""What kind of mistake breaking a rule is."""


class Marker(ABC):
    """Something in `Annotated` that a field's schema says beyond what its type does."""

    @abstractmethod
    def mark(self, schema: Schema) -> None:
        """Say it."""


@dataclass(frozen=True, slots=True)
class Rule(Marker):
    """A rule in CEL and what to tell those who break it."""

    cel: str
    message: str
    reason: Reason | None = None
    field_path: str | None = None
    message_expression: str | None = None

    def __post_init__(self) -> None:
        if not self.message.strip() or "\n" in self.message:
            raise ValueError(f"the rule {self.cel!r} needs a message of one line")

    def mark(self, schema: Schema) -> None:
        """Add the rule to what the API server validates."""
        said = {
            "rule": self.cel,
            "message": self.message,
            "reason": self.reason,
            "fieldPath": self.field_path,
            "messageExpression": self.message_expression,
        }
        validations: list[Schema] = schema.setdefault("x-kubernetes-validations", [])
        validations.append({key: value for key, value in said.items() if value is not None})


def rule(
    cel: str,
    message: str,
    *,
    reason: Reason | None = None,
    field_path: str | None = None,
    message_expression: str | None = None,
) -> Rule:
    """A rule: a CEL expression over `self`, and `oldSelf` on updates, that has to be true.

    Args:
        cel: The expression.
        message: What to tell those who break it, in one line.
        reason: What kind of mistake it is; `FieldValueInvalid` unless said.
        field_path: The field to blame, relative to where the rule stands: `.spec.version`.
        message_expression: A CEL expression that makes a message with values in it; `message` is
            told when it fails.
    """
    return Rule(cel, message, reason, field_path, message_expression)


@dataclass(frozen=True, slots=True)
class Immutable(Rule):
    """The rule that a value, once there, neither changes nor goes."""


def immutable(message: str = "cannot be changed once it is set") -> Immutable:
    """A value that, once there, neither changes nor goes. Its parents must not go either."""
    return Immutable("self == oldSelf", message)


def kept(field: str, message: str) -> Rule:
    """The rule on an object that an optional field, once there, does not go."""
    return Rule(f"!has(oldSelf.{field}) || has(self.{field})", message, field_path=f".{field}")


def major(version: str) -> str:
    """CEL for the major number of a Kubernetes version: `major("self.version")`."""
    return f"int({version}.split('.')[0].replace('v', ''))"


def minor(version: str) -> str:
    """CEL for the minor number of a Kubernetes version: `minor("self.version")`."""
    return f"int({version}.split('.')[1])"
