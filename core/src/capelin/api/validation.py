"""Validation of objects in Python, where a rule in the CRD cannot see enough.

The API server calls the functions through a webhook of the manager, before it stores a new object
or a changed spec. It calls them for no other change, so that controllers can always finish the
deletion of an object.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from capelin.api.objects import BaseObject, Unstructured

ObjectT = TypeVar("ObjectT", bound=BaseObject)

VALIDATION_PATH: Final = "/validate"
"""The path of the validating webhook of a manager."""
_SECONDS: Final = 5
_CHANGES_SPEC: Final = "oldObject == null || !has(object.spec) || object.spec != oldObject.spec"
_STAYS: Final = "!has(object.metadata.deletionTimestamp)"


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why an object is invalid."""

    field: str
    """The path of the field: `spec.size`."""
    message: str
    """The rest of the sentence that begins with the field: `must be at most 3 in the zone a`."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


Validator = Callable[[ObjectT, ObjectT | None], Iterable[Problem]]

_VALIDATORS: Final[dict[tuple[str, str, str], tuple[type[BaseObject], list[Validator[Any]]]]] = {}
"""The class and its validators, by group, version and kind."""


def validates(cls: type[ObjectT]) -> Callable[[Validator[ObjectT]], Validator[ObjectT]]:
    """Register a function that returns the problems of a new object, or of a changed spec.

    Its second argument is the object before the change, or None for a new object. The function
    must be quick and must not change anything. The API server rejects the change, too, if the
    function raises or the manager does not respond: prefer rules in the CRD where CEL suffices.
    """
    resource = cls.resource
    identity = resource.group, resource.version, resource.kind

    def register(function: Validator[ObjectT]) -> Validator[ObjectT]:
        _VALIDATORS.setdefault(identity, (cls, []))[1].append(function)
        return function

    return register


def has_validators(cls: type[BaseObject]) -> bool:
    """Whether functions validate a kind in this version."""
    resource = cls.resource
    return (resource.group, resource.version, resource.kind) in _VALIDATORS


def problems(obj: BaseObject, old: BaseObject | None = None) -> list[Problem]:
    """The problems of an object that the functions for its class find."""
    resource = obj.resource
    _, validators = _VALIDATORS[resource.group, resource.version, resource.kind]
    return [problem for validator in validators for problem in validator(obj, old)]


def problems_of_json(obj: Unstructured, old: Unstructured | None) -> list[Problem]:
    """The problems of an object as JSON.

    Raises:
        LookupError: No function validates its kind in its version.
        ValueError: The object is unreadable.
    """
    group, _, version = str(obj.get("apiVersion")).rpartition("/")
    cls, _ = _VALIDATORS[group, version, str(obj.get("kind"))]
    return problems(cls.read(obj), cls.read(old) if old else None)


def validating_webhook(
    name: str, kinds: Sequence[type[BaseObject]], client_config: Mapping[str, Any]
) -> Unstructured:
    """The configuration by which the API server validates kinds with a manager."""
    conditions = {"changes-the-spec": _CHANGES_SPEC, "stays": _STAYS}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": f"{cls.resource.plural}.{cls.resource.group}",
                "admissionReviewVersions": ["v1"],
                "clientConfig": dict(client_config),
                "failurePolicy": "Fail",
                # The API server converts objects of other versions to this one.
                "matchPolicy": "Equivalent",
                "matchConditions": [
                    {"name": key, "expression": expression}
                    for key, expression in conditions.items()
                ],
                "rules": [
                    {
                        "apiGroups": [cls.resource.group],
                        "apiVersions": [cls.resource.version],
                        "resources": [cls.resource.plural],
                        "operations": ["CREATE", "UPDATE"],
                        "scope": "*",
                    }
                ],
                "sideEffects": "None",
                "timeoutSeconds": _SECONDS,
            }
            for cls in kinds
        ],
    }
