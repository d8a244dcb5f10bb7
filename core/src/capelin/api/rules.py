"""Validation rules in CEL, which the API server checks on every write.

Attach a rule to a field, or to a class if it concerns several fields:

    class Spec(Model):
        version: KubernetesVersion
        backend: Annotated[Literal["Processes", "Pods"], immutable()]

        rules = (
            rule(f"{minor('self.version')} - {minor('oldSelf.version')} in [0, 1]",
                 "upgrades go one minor version at a time"),
        )

Only the API server evaluates rules. Building an object in Python checks types and bounds only.
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
"""The reason in the API server's error."""


class Marker(ABC):
    """Metadata in `Annotated` that changes the schema of a field."""

    @abstractmethod
    def mark(self, schema: Schema) -> None:
        """Change the schema of the field."""


@dataclass(frozen=True, slots=True)
class Rule(Marker):
    """A CEL rule and the message for those who violate it."""

    cel: str
    message: str
    reason: Reason | None = None
    field_path: str | None = None
    message_expression: str | None = None

    def __post_init__(self) -> None:
        if not self.message.strip() or "\n" in self.message:
            raise ValueError(f"the rule {self.cel!r} needs a message of one line")

    def mark(self, schema: Schema) -> None:
        """Add the rule to the schema."""
        entry = {
            "rule": self.cel,
            "message": self.message,
            "reason": self.reason,
            "fieldPath": self.field_path,
            "messageExpression": self.message_expression,
        }
        validations: list[Schema] = schema.setdefault("x-kubernetes-validations", [])
        validations.append({key: value for key, value in entry.items() if value is not None})


def rule(
    cel: str,
    message: str,
    *,
    reason: Reason | None = None,
    field_path: str | None = None,
    message_expression: str | None = None,
) -> Rule:
    """A rule: a CEL expression over `self`, and `oldSelf` on updates, that must be true.

    Args:
        cel: The expression.
        message: The message for those who violate it, in one line.
        reason: The reason in the error. Default: `FieldValueInvalid`.
        field_path: The field to blame, relative to the rule's location: `.spec.version`.
        message_expression: A CEL expression for a message that contains values. If it fails, the
            API server uses `message`.
    """
    return Rule(cel, message, reason, field_path, message_expression)


@dataclass(frozen=True, slots=True)
class Immutable(Rule):
    """The rule that a value can be neither changed nor removed once it is set."""


def immutable(message: str = "cannot be changed once it is set") -> Immutable:
    """A value that can be neither changed nor removed once it is set. Guard its parents too."""
    return Immutable("self == oldSelf", message)


def kept(field: str, message: str) -> Rule:
    """The rule of an object that an optional field cannot be removed once it is set."""
    return Rule(f"!has(oldSelf.{field}) || has(self.{field})", message, field_path=f".{field}")


def major(version: str) -> str:
    """CEL for the major number of a Kubernetes version: `major("self.version")`."""
    return f"int({version}.split('.')[0].replace('v', ''))"


def minor(version: str) -> str:
    """CEL for the minor number of a Kubernetes version: `minor("self.version")`."""
    return f"int({version}.split('.')[1])"
