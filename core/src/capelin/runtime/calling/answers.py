"""Reading answers as Cluster API does, and making one of several."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import orjson

from capelin.runtime.calling.connections import HttpAnswer
from capelin.runtime.calling.errors import (
    NoAnswerError,
    NoHandlerError,
    NoMergeRuleError,
    RefusedError,
)
from capelin.runtime.catalog import AnyHook
from capelin.runtime.messages import MessageError, Response, RetryResponse, read
from capelin.runtime.topology.patches import is_object

ResponseT = TypeVar("ResponseT", bound=Response)

_RETRY = "retryAfterSeconds"
_SHOWN = 512


def check_status(who: str, answer: HttpAnswer) -> None:
    """Refuse what does not come with status 200.

    Raises:
        NoAnswerError: it does not.
    """
    if 300 <= answer.status < 400:
        raise NoAnswerError(
            "redirect", f"{who} sends elsewhere (status {answer.status}), and nobody follows"
        )
    if answer.status != 200:
        shown = answer.body[: _SHOWN + 1].decode(errors="replace")
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        raise NoAnswerError("status", f"{who} answered with status {answer.status}: {shown!r}")


def read_answer(handler: str, kind: type[ResponseT], body: bytes) -> ResponseT:
    """A success, from what came over the wire.

    Raises:
        NoAnswerError: nothing of this type can be read from it.
        RefusedError: it is no success.
    """
    document = _first_value(handler, body)
    status = _said(document, "status")
    message = _said(document, "message")
    if status != "Success" and isinstance(status, str | None):
        raise RefusedError(handler, status or "", message if isinstance(message, str) else "")
    if issubclass(kind, RetryResponse) and _said(document, _RETRY) is None:
        # What is not said is zero in Go.
        document = {**document, _RETRY: 0}
    try:
        return read(kind, document)
    except MessageError as error:
        raise NoAnswerError(
            "unreadable", f"{handler} gave an answer that cannot be read ({error})"
        ) from None


def _first_value(handler: str, body: bytes) -> dict[str, Any]:
    """The first JSON value; Go does not look at what comes after it."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            document, _ = json.JSONDecoder().raw_decode(body.decode().lstrip())
        # What is nested a thousand times and more is read by nothing here, and is no ValueError.
        except (ValueError, RecursionError):
            raise NoAnswerError(
                "unreadable", f"{handler} gave an answer that is not JSON"
            ) from None
    if not is_object(document):
        raise NoAnswerError("unreadable", f"{handler} gave an answer that is no JSON object")
    return document


def _said(document: dict[str, Any], name: str) -> object:
    """The value of a field, whose name may be in any case."""
    if name in document:
        return cast("object", document[name])
    for key, value in document.items():
        if key.casefold() == name.casefold():
            return value
    return None


Merge = Callable[[AnyHook, Sequence[Response]], Response]
"""Makes one answer of several successes."""


def usual_merge(hook: AnyHook, *, handlers: int) -> Merge:
    """The rule for a hook that has none of its own: one that loses nothing.

    Raises:
        NoMergeRuleError: there is none for the answers of so many handlers.
    """
    more = hook.response_type().model_fields.keys() - RetryResponse.model_fields.keys()
    if hook.exclusive or (more and handlers < 2):
        return _the_only_one
    if more:
        raise NoMergeRuleError(
            f"answers to {hook.id.name} say {', '.join(sorted(more))}, and nobody knows how several"
            " become one; give a rule for it, or call its handlers one by one"
        )
    return merged


def _the_only_one(hook: AnyHook, responses: Sequence[Response]) -> Response:
    if responses:
        return responses[0]
    try:
        return success(hook)
    except MessageError as error:
        raise NoHandlerError(
            f"nobody is a handler for {hook.id.name}, and an answer cannot be made up ({error})"
        ) from None


def success(hook: AnyHook) -> Response:
    """The answer that stands for none: beside success, all that it says is Go's zero.

    Raises:
        MessageError: such an answer is none of this hook's.
    """
    kind = hook.response_type()
    nothing = {str(field.validation_alias): None for field in kind.model_fields.values()}
    return read(kind, {**nothing, "status": "Success"})


def merged(hook: AnyHook, responses: Sequence[Response]) -> Response:
    """One answer for several: held back until the first wants to be asked again, all messages.

    What else answers say is lost, so a hook that is about more needs a rule of its own.
    """
    said: dict[str, Any] = {
        "status": "Success",
        "message": ", ".join(response.message for response in responses if response.message),
    }
    if hook.blocks():
        waits = [one.retry_after_seconds for one in responses if isinstance(one, RetryResponse)]
        said["retry_after_seconds"] = min((wait for wait in waits if wait), default=0)
    return hook.response_type()(**said)
