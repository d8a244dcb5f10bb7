"""Reads responses as Cluster API does, and merges several into one."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import orjson

from capelin.runtime.catalog import AnyHook
from capelin.runtime.client.errors import (
    NoHandlerError,
    NoMergeRuleError,
    NoResponseError,
    RefusedError,
)
from capelin.runtime.messages import MessageError, Response, RetryResponse, read
from capelin.runtime.topology.patches import is_object

ResponseT = TypeVar("ResponseT", bound=Response)

_RETRY = "retryAfterSeconds"


def read_response(handler: str, kind: type[ResponseT], body: bytes) -> ResponseT:
    """Read a response, which is a success.

    Raises:
        NoResponseError: it is none of this type.
        RefusedError: it is no success.
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
    """The first JSON value: Go ignores what follows."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            document, _ = json.JSONDecoder().raw_decode(body.decode().lstrip())
        # JSON that is nested too deeply raises no ValueError.
        except (ValueError, RecursionError):
            raise NoResponseError(
                "unreadable", f"{handler} sent a response that is not JSON"
            ) from None
    if not is_object(document):
        raise NoResponseError("unreadable", f"{handler} sent a response that is no JSON object")
    return document


def _field(document: dict[str, Any], name: str) -> object:
    """The value of a field, whose name may be in any case."""
    if name in document:
        return cast("object", document[name])
    for key, value in document.items():
        if key.casefold() == name.casefold():
            return value
    return None


Merge = Callable[[AnyHook, Sequence[Response]], Response]
"""Merges several successes into one response."""


def default_merge(hook: AnyHook, *, handlers: int) -> Merge:
    """The rule for a hook that has no own one: it loses nothing.

    Raises:
        NoMergeRuleError: the responses of several handlers cannot be merged without loss.
    """
    more = hook.response_type().model_fields.keys() - RetryResponse.model_fields.keys()
    if hook.exclusive or (more and handlers < 2):
        return _the_only_one
    if more:
        raise NoMergeRuleError(
            f"no rule merges {', '.join(sorted(more))} of several responses of {hook.id.name};"
            " pass one in merges, or call the handlers one by one"
        )
    return merge_responses


def _the_only_one(hook: AnyHook, responses: Sequence[Response]) -> Response:
    if responses:
        return responses[0]
    try:
        return success_response(hook)
    except MessageError as error:
        raise NoHandlerError(
            f"no handler serves {hook.id.name}, and its response cannot be empty ({error})"
        ) from None


def success_response(hook: AnyHook) -> Response:
    """An empty success: every other field has Go's zero value.

    Raises:
        MessageError: the hook's response needs more.
    """
    kind = hook.response_type()
    zero = {str(field.validation_alias): None for field in kind.model_fields.values()}
    return read(kind, {**zero, "status": "Success"})


def merge_responses(hook: AnyHook, responses: Sequence[Response]) -> Response:
    """Merge responses: the shortest wait, and all messages.

    Other fields are lost, so a hook that has some needs a rule of its own.
    """
    fields: dict[str, Any] = {
        "status": "Success",
        "message": ", ".join(response.message for response in responses if response.message),
    }
    if hook.blocks():
        waits = [r.retry_after_seconds for r in responses if isinstance(r, RetryResponse)]
        fields["retry_after_seconds"] = min((wait for wait in waits if wait), default=0)
    return hook.response_type()(**fields)
