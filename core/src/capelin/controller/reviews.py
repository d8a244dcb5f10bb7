"""The responses to the API server's reviews: conversions and validations."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from capelin.api import ConversionError, Problem, Unstructured, convert_json, problems_of_json

log = logging.getLogger(__name__)

_CONVERSIONS: Final = "apiextensions.k8s.io/v1"
_ADMISSIONS: Final = "admission.k8s.io/v1"


def convert_review(review: Mapping[str, Any]) -> Unstructured:
    """The response to a ConversionReview: all its objects in the desired version, or one error.

    Raises:
        ValueError: It is not a ConversionReview in v1.
    """
    request = _request_of(review, _CONVERSIONS, "ConversionReview")
    response: Unstructured = {"uid": request.get("uid", "")}
    try:
        converted = list(_converted(request["objects"], request["desiredAPIVersion"]))
        response |= {"result": {"status": "Success"}, "convertedObjects": converted}
    except ConversionError as error:
        response["result"] = {"status": "Failed", "message": str(error)}
    except (KeyError, TypeError, AttributeError):
        raise ValueError("the ConversionReview lacks objects or their desired version") from None
    return {"apiVersion": _CONVERSIONS, "kind": "ConversionReview", "response": response}


def validate_review(review: Mapping[str, Any]) -> Unstructured:
    """The response to an AdmissionReview: the object is allowed, or the problems.

    Raises:
        ValueError: It is not an AdmissionReview in v1 with an object.
    """
    request = _request_of(review, _ADMISSIONS, "AdmissionReview")
    obj, old = request.get("object"), request.get("oldObject")
    if not isinstance(obj, dict) or not isinstance(old, dict | None):
        raise ValueError("the AdmissionReview lacks its object")  # noqa: TRY004 - of the request
    status = _rejection(cast("Unstructured", obj), cast("Unstructured | None", old))
    response: Unstructured = {"uid": request.get("uid", ""), "allowed": status is None}
    if status is not None:
        response["status"] = status
    return {"apiVersion": _ADMISSIONS, "kind": "AdmissionReview", "response": response}


def _request_of(review: Mapping[str, Any], api_version: str, kind: str) -> Unstructured:
    request = review.get("request")
    if review.get("apiVersion") != api_version or not isinstance(request, dict):
        raise ValueError(f"the request is not a {kind} of {api_version}")
    return cast("Unstructured", request)


def _converted(objects: list[Unstructured], api_version: str) -> Iterator[Unstructured]:
    for index, obj in enumerate(objects):
        try:
            yield convert_json(obj, api_version)
        except ConversionError as error:
            metadata: Unstructured = obj.get("metadata") or {}
            name = "/".join(filter(None, (metadata.get("namespace"), metadata.get("name"))))
            raise ConversionError(f"object {index}, {obj.get('kind')} {name}: {error}") from error


def _rejection(obj: Unstructured, old: Unstructured | None) -> Unstructured | None:
    """The status for the user, or None if the object is valid."""
    kind = obj.get("kind")
    try:
        found = problems_of_json(obj, old)
    except LookupError:
        return _status(500, "InternalError", f"the manager has no function that validates {kind}")
    except Exception as error:
        # The message of the exception may contain values of other objects.
        log.exception("The validation of a %s has failed", kind)
        reason = type(error).__name__
        return _status(500, "InternalError", f"the validation of {kind} failed with {reason}")
    if not found:
        return None
    status = _status(422, "Invalid", "; ".join(map(str, found)))
    return {**status, "details": {"causes": _causes(found)}}


def _status(code: int, reason: str, message: str) -> Unstructured:
    return {"code": code, "reason": reason, "message": message}


def _causes(found: Sequence[Problem]) -> list[Unstructured]:
    return [
        {"reason": "FieldValueInvalid", "field": problem.field, "message": problem.message}
        for problem in found
    ]
