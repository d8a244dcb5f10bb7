"""Requests to an extension and its responses. The rules judge only these."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import orjson
from capelin.api import Unstructured
from capelin.runtime import AnyHook, HookId
from capelin.runtime.client import FailureKind, HttpResponse, NoResponseError
from capelin.runtime.messages import MessageError, Response, read
from capelin.runtime.topology import is_object
from capelin.runtime.v1alpha1 import ExtensionHandler


@dataclass(frozen=True)
class Exchange:
    label: str
    """The handler and the kind of request, for people."""
    outcome: HttpResponse | NoResponseError

    @property
    def failure_kind(self) -> FailureKind | None:
        """The reason for the lack of a response with status 200."""
        return self.outcome.failure_kind

    @cached_property
    def document(self) -> Unstructured | None:
        """The body of a response with status 200, if it is a JSON object."""
        if isinstance(self.outcome, NoResponseError) or self.failure_kind is not None:
            return None
        try:
            found = orjson.loads(self.outcome.body)
        except orjson.JSONDecodeError:
            return None
        return found if is_object(found) else None

    @property
    def status(self) -> str | None:
        """`Success`, `Failure`, or another value from the response."""
        status = None if self.document is None else self.document.get("status")
        return status if isinstance(status, str) else None

    @property
    def succeeded(self) -> bool:
        return self.status == "Success"

    @property
    def message(self) -> str:
        return str((self.document or {}).get("message", ""))

    def unreadable(self, kind: type[Response]) -> str | None:
        """Why the response does not match its type, or `None`."""
        if self.failure_kind is not None:
            return None
        if self.document is None:
            return "is not a JSON object"
        fields = {"status": "Success", "retryAfterSeconds": 0, **self.document}
        # Other rules judge these two.
        fields["status"] = "Success"
        if "retryAfterSeconds" in self.document:
            fields["retryAfterSeconds"] = 0
        try:
            read(kind, fields)
        except MessageError as error:
            return str(error)
        return None


UPGRADED: Final = "upgraded"
"""The variant of a request for an upgrade plan in which only the workers lack the version."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A handler, and every exchange with it."""

    handler: ExtensionHandler
    hook: AnyHook
    request: Unstructured
    first: Exchange
    again: Exchange
    variants: dict[str, Exchange] = field(default_factory=dict[str, Exchange])
    """Exchanges with variants of the first request, by their difference."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Every exchange with an extension."""

    discovery_hook: HookId
    discovery: Sequence[Exchange]
    """Two, one after the other."""
    needs_content_type: bool
    handlers: Sequence[ExtensionHandler] = ()
    unknown: Sequence[str] = ()
    """Problems of handlers for unknown hooks."""
    probes: Sequence[Probe] = ()
    concurrent: Sequence[Exchange] = ()
    """Several at the same time."""

    @property
    def plain(self) -> Sequence[Exchange]:
        """Exchanges with requests as Cluster API sends them."""
        return (
            *self.discovery,
            *(exchange for probe in self.probes for exchange in (probe.first, probe.again)),
        )


def with_unknown_fields(request: Unstructured) -> Unstructured:
    """The request with additional fields, like from a newer caller."""
    return {**request, "fromTheFuture": {"some": ["thing"]}}


def in_other_case(request: Unstructured) -> Unstructured:
    """The request with capitals in field names, which Go accepts."""
    return {key[:1].upper() + key[1:]: value for key, value in request.items()}


def enlarged(request: Unstructured, size: int) -> Unstructured | None:
    """The request with templates of this total size, or `None` if it has none."""
    items: list[Any] = request.get("items", [])
    if not items:
        return None
    padded = json.loads(json.dumps(items))
    for item in padded:
        annotations = item["object"].setdefault("metadata", {}).setdefault("annotations", {})
        annotations["padding"] = "x" * (size // len(padded))
    return {**request, "items": padded}
