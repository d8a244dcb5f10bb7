"""What can go wrong between us and an API server, as exceptions to catch by name."""
# ruff: noqa: N818 - they are named as the API server names its reasons

import json
from collections.abc import Mapping
from typing import Any, cast


class ClientError(Exception):
    """Anything that this client raises. Its message never holds a credential."""


class ConfigError(ClientError):
    """A kubeconfig, or what stands in its place, cannot be used."""


class CredentialError(ClientError):
    """The credentials that the configuration names cannot be had."""


class Unreachable(ClientError):
    """No answer: the server may or may not have done what was asked."""


class Unreadable(ClientError):
    """The server answered with something that is not what was asked for."""


class ApiError(ClientError):
    """The API server said no."""

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message or reason or f"the API server answered with status {status}")
        self.status = status
        """The HTTP status."""
        self.reason = reason
        """The API server's one-word reason, as `NotFound`."""
        self.message = message
        """The API server's own sentence."""
        self.details = details or {}
        """What the API server adds: name, kind, causes, retryAfterSeconds."""

    @property
    def causes(self) -> tuple[Mapping[str, Any], ...]:
        """What is wrong in particular: reason, message and field of each cause."""
        return tuple(self.details.get("causes") or ())


class BadRequest(ApiError):
    """The request itself makes no sense (400)."""


class Unauthorized(ApiError):
    """The server does not know who is asking (401)."""


class Forbidden(ApiError):
    """Known, but not allowed (403)."""


class NotFound(ApiError):
    """There is no such object (404)."""


class NotServed(ApiError):
    """There is no such kind, or not yet (404): which says nothing about any object of it."""


class AlreadyExists(ApiError):
    """An object of that name is there already (409)."""


class Conflict(ApiError):
    """Somebody else wrote first, owns the field, or a precondition does not hold (409)."""


class Expired(ApiError):
    """The resourceVersion or continue token is too old: list again (410)."""


class Invalid(ApiError):
    """The object breaks its schema or its rules (422)."""


class TooManyRequests(ApiError):
    """The server sheds load, or an eviction would break a disruption budget (429)."""


class Unavailable(ApiError):
    """The server cannot answer just now (500 by timeout, 502, 503, 504)."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}

_BY_REASON: dict[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "Expired": Expired,
    "Gone": Expired,
    "ServerTimeout": Unavailable,
    "ServiceUnavailable": Unavailable,
    "Timeout": Unavailable,
}


def error_of(status: int, body: bytes | Mapping[str, Any]) -> ApiError:
    """The exception for an answer that is not a success, from its `Status` object if it has one."""
    said = _status_object(body)
    details = cast("dict[str, Any]", (said or {}).get("details") or {})
    if status == 404 and not details.get("name"):
        return NotServed(status, "NotFound", "the API server has no such kind: is its CRD there?")
    if said is None:
        return _class_of(status, "")(status, "", _text(status, cast("bytes", body)))
    reason = str(said.get("reason") or "")
    return _class_of(status, reason)(status, reason, str(said.get("message") or ""), details)


def _class_of(status: int, reason: str) -> type[ApiError]:
    return _BY_REASON.get(reason) or _BY_STATUS.get(status) or ApiError


def _status_object(body: bytes | Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not isinstance(body, bytes):
        return body
    try:
        value: Any = json.loads(body)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    said = cast("dict[str, Any]", value)
    # Cluster API's API server in memory sends Go's error, with the Status in it.
    wrapped: object = said.get("ErrStatus")
    if isinstance(wrapped, dict):
        return cast("dict[str, Any]", wrapped)
    return said if said.get("kind") == "Status" else None


def _text(status: int, body: bytes) -> str:
    """The start of an answer that is no `Status`: a proxy's page, a plain line."""
    line = " ".join(body[:512].decode("utf-8", "replace").split())
    return f"the server answered with status {status}: {line}" if line else ""
