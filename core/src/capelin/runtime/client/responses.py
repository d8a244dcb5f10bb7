"""Reads responses like Cluster API."""

import json
from typing import Any, TypeVar, cast

import orjson

from capelin.json_text import MAX_LEVELS, TOO_DEEP, TooDeepError, levels
from capelin.runtime.client.errors import NoResponseError, RefusedError
from capelin.runtime.messages import MessageError, Response, RetryResponse, read
from capelin.runtime.topology.patches import is_object

ResponseT = TypeVar("ResponseT", bound=Response)

_RETRY = "retryAfterSeconds"


def read_response(handler: str, kind: type[ResponseT], body: bytes) -> ResponseT:
    """Read a successful response.

    Raises:
        NoResponseError: It is not of this type.
        RefusedError: It is not a success.
    """
    document = _first_value(handler, body)
    status = _field(document, "status")
    message = _field(document, "message")
    if status != "Success" and isinstance(status, str | None):
        raise RefusedError(handler, status or "", message if isinstance(message, str) else "")
    if issubclass(kind, RetryResponse) and _field(document, _RETRY) is None:
        # A missing number is zero in Go.
        document = {**document, _RETRY: 0}
    try:
        return read(kind, document)
    except MessageError as error:
        raise NoResponseError(
            "unreadable", f"{handler} sent a response that cannot be read ({error})"
        ) from None


def _first_value(handler: str, body: bytes) -> dict[str, Any]:
    """The first JSON value: Go ignores the rest."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            if levels(body) > MAX_LEVELS:
                # A finalizer that runs while Python's parser is at its limit fails.
                raise TooDeepError(TOO_DEEP)
            document, _ = json.JSONDecoder().raw_decode(body.decode().lstrip())
        except ValueError:
            raise NoResponseError(
                "unreadable", f"{handler} sent a response that is not JSON"
            ) from None
    if not is_object(document):
        raise NoResponseError("unreadable", f"{handler} sent a response that is not a JSON object")
    return document


def _field(document: dict[str, Any], name: str) -> object:
    """The value of a field, with its name in any case."""
    if name in document:
        return cast("object", document[name])
    for key, value in document.items():
        if key.casefold() == name.casefold():
            return value
    return None
