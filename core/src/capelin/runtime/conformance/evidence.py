"""What was asked of an extension, and how it reacted. Rules look at this and at nothing else."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from capelin.api import Unstructured
from capelin.runtime.calling.connections import HttpAnswer
from capelin.runtime.calling.discovery import SaidHandler
from capelin.runtime.calling.errors import NoAnswerError
from capelin.runtime.catalog import AnyHook, HookId
from capelin.runtime.messages import MessageError, Response, read
from capelin.runtime.topology.patches import is_object


@dataclass(frozen=True)
class Reaction:
    """What became of one request."""

    what: str
    """The request, for people: who was asked, and with what."""
    answer: HttpAnswer | NoAnswerError

    @property
    def trouble(self) -> str | None:
        """Why there is no answer with status 200, if there is none."""
        if isinstance(self.answer, NoAnswerError):
            return self.answer.trouble
        if 300 <= self.answer.status < 400:
            return "redirect"
        return None if self.answer.status == 200 else "status"

    @cached_property
    def document(self) -> Unstructured | None:
        """What was answered with status 200, if that is a JSON object."""
        if isinstance(self.answer, NoAnswerError) or self.trouble is not None:
            return None
        try:
            found = orjson.loads(self.answer.body)
        except orjson.JSONDecodeError:
            return None
        return found if is_object(found) else None

    @property
    def status(self) -> str | None:
        """`Success` or `Failure`, or whatever else it says."""
        said = None if self.document is None else self.document.get("status")
        return said if isinstance(said, str) else None

    @property
    def succeeded(self) -> bool:
        """Whether it is a success."""
        return self.status == "Success"

    @property
    def message(self) -> str:
        """What people are told."""
        return str((self.document or {}).get("message", ""))

    def unreadable(self, kind: type[Response]) -> str | None:
        """Why what was answered is not of the type, if it is not."""
        if self.trouble is not None:
            return None
        if self.document is None:
            return "is no JSON object"
        said = {"status": "Success", "retryAfterSeconds": 0, **self.document}
        # What these two say is another rule's matter.
        said["status"] = "Success"
        if "retryAfterSeconds" in self.document:
            said["retryAfterSeconds"] = 0
        try:
            read(kind, said)
        except MessageError as error:
            return str(error)
        return None


@dataclass(frozen=True, slots=True)
class Asked:
    """A handler, and all that it was asked."""

    handler: SaidHandler
    hook: AnyHook
    request: Unstructured
    first: Reaction
    again: Reaction
    derived: dict[str, Reaction] = field(default_factory=dict[str, Reaction])
    """Reactions to what differs from the first request, by what differs."""

    @property
    def all(self) -> Sequence[Reaction]:
        """Every reaction."""
        return (self.first, self.again, *self.derived.values())


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was seen of an extension."""

    host: str
    discovery_hook: HookId
    discovery: Sequence[Reaction]
    """Two, one after the other."""
    needs_content_type: bool
    handlers: Sequence[SaidHandler] = ()
    unknown: Sequence[str] = ()
    """Complaints about handlers for hooks that are not known here."""
    asked: Sequence[Asked] = ()
    together: Sequence[Reaction] = ()
    """Several at the same moment."""

    @property
    def plain(self) -> Sequence[Reaction]:
        """Reactions to requests as Cluster API sends them."""
        return (
            *self.discovery,
            *(one for asked in self.asked for one in (asked.first, asked.again)),
        )


def with_unknown_fields(request: Unstructured) -> Unstructured:
    """The request as a newer caller would send it."""
    return {**request, "fromTheFuture": {"some": ["thing"]}}


def in_other_case(request: Unstructured) -> Unstructured:
    """The request with capitals where Go does not mind them."""
    return {key[:1].upper() + key[1:]: value for key, value in request.items()}


def enlarged(request: Unstructured, size: int) -> Unstructured | None:
    """The request about templates that are so large in all; nothing if it is about none."""
    items: list[Any] = request.get("items", [])
    if not items:
        return None
    padded = json.loads(json.dumps(items))
    for item in padded:
        annotations = item["object"].setdefault("metadata", {}).setdefault("annotations", {})
        annotations["padding"] = "x" * (size // len(padded))
    return {**request, "items": padded}
