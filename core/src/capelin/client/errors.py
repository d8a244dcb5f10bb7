"""Exceptions of the client, one for each reason that a caller may handle."""
# ruff: noqa: N818 - their names are the API server's reasons

import errno
import os
from collections.abc import Mapping
from typing import Any, Final, cast

import aiohttp

from capelin.client.unreadable import UnreadableObject
from capelin.json_text import read_json


class ClientError(Exception):
    """The base of all errors of this client. Messages never contain credentials."""


class ConfigError(ClientError):
    """The configuration (a kubeconfig, or the service account of a pod) is unusable."""


class CredentialError(ClientError):
    """The credentials that the configuration names are not available."""


class Unreachable(ClientError):
    """The server did not respond. It may or may not have processed the request."""

    server: str | None = None
    """The address of the server."""


class CircuitOpen(Unreachable):
    """The server did not answer before, so the client pauses requests."""

    def __init__(self, message: str, *, retry_seconds: float) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds
        """The remaining pause."""


class Unreadable(ClientError):
    """The response is not readable as the requested kind."""

    def __init__(self, message: str, unreadable: UnreadableObject | None = None) -> None:
        super().__init__(message)
        self.object = unreadable
        """The object, if the response is one."""


class ResponseTooLarge(ClientError):
    """The server sent more than the client's options allow."""


class ApiError(ClientError):
    """The API server rejected the request."""

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
        """The API server's reason, such as `NotFound`."""
        self.message = message
        """The API server's message."""
        self.details = details or {}
        """The API server's details: name, kind, causes, retryAfterSeconds."""

    @property
    def causes(self) -> tuple[Mapping[str, Any], ...]:
        """Reason, message and field of each cause."""
        return tuple(self.details.get("causes") or ())


class BadRequest(ApiError):
    """The request is malformed (400)."""


class Unauthorized(ApiError):
    """The server does not accept the credentials (401)."""


class Forbidden(ApiError):
    """The user is not allowed to do this (403)."""


class NotFound(ApiError):
    """The object does not exist (404)."""


class NotServed(ApiError):
    """The API server does not serve the kind, or not yet (404)."""


class AlreadyExists(ApiError):
    """An object of that name exists already (409)."""


class Conflict(ApiError):
    """Another client changed the object or owns the field, or a precondition fails (409)."""


class Expired(ApiError):
    """The resourceVersion or continue token is too old: list again (410)."""


class Invalid(ApiError):
    """The object violates its schema or validation rules (422)."""


class TooManyRequests(ApiError):
    """The server is overloaded, or an eviction would violate a disruption budget (429)."""


class Unavailable(ApiError):
    """The server cannot answer now (timeout, 502, 503, 504)."""


_MAX_MESSAGE = 32_768
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


def error_of(status: int, body: bytes | Mapping[str, Any], *, is_trusted: bool = True) -> ApiError:
    """The exception for an unsuccessful response, from its `Status` object if it has one.

    Other text of the response is part of the message only if the server is trusted: messages
    become conditions, which the tenant who chose the server can read.
    """
    status_object = _status_object(body)
    details = cast("dict[str, Any]", (status_object or {}).get("details") or {})
    if status == 404 and not details.get("name"):
        return NotServed(
            status, "NotFound", "the API server has no such kind: is its CRD installed?"
        )
    if status_object is None:
        text = _text(status, cast("bytes", body)) if is_trusted else ""
        return _class_of(status, "")(status, "", text)
    reason = str(status_object.get("reason") or "")
    message = str(status_object.get("message") or "")[:_MAX_MESSAGE]
    return _class_of(status, reason)(status, reason, message, details)


def _class_of(status: int, reason: str) -> type[ApiError]:
    return _BY_REASON.get(reason) or _BY_STATUS.get(status) or ApiError


def _status_object(body: bytes | Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not isinstance(body, bytes):
        return body
    try:
        value: Any = read_json(body)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    document = cast("dict[str, Any]", value)
    # Cluster API's in-memory API server sends Go's error, which wraps the Status.
    wrapped: object = document.get("ErrStatus")
    if isinstance(wrapped, dict):
        return cast("dict[str, Any]", wrapped)
    return document if document.get("kind") == "Status" else None


def _text(status: int, body: bytes) -> str:
    """The start of a response that is not a `Status`: a proxy's page, a line of text."""
    line = " ".join(body[:512].decode("utf-8", "replace").split())
    return f"the server answered with status {status}: {line}" if line else ""


LOCAL_ADDRESSES: Final = "loopback and link-local addresses are not allowed"


class AddressRefusedError(PermissionError):
    """A connection has an address that tenants may not choose."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, LOCAL_ADDRESSES)


def describe_connection_error(error: aiohttp.ClientError) -> str:
    """The problem with a connection. The same situation always gives the same words."""
    match error:
        case aiohttp.ClientConnectorError(os_error=AddressRefusedError()):
            reason = LOCAL_ADDRESSES
        case aiohttp.ClientConnectorCertificateError():
            problem = error.certificate_error
            reason = (
                f"its certificate is not trusted: {getattr(problem, 'verify_message', problem)}"
            )
        case aiohttp.ClientConnectorDNSError():
            reason = "its name is not known"
        case aiohttp.ClientSSLError():
            reason = f"no TLS with it: {getattr(error.os_error, 'reason', None) or 'refused'}"
        case aiohttp.ConnectionTimeoutError():
            reason = "no connection in time"
        case aiohttp.ClientHttpProxyError(status=status):
            reason = f"its proxy answered with status {status}"
        case aiohttp.ServerTimeoutError():
            reason = "it stopped responding"
        case aiohttp.ClientOSError(errno=int(number)):
            reason = os.strerror(number).lower()
        case _:
            reason = "it closed the connection"
    return reason
