"""Unreadable objects: their identity, the reason, and one log line for each."""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from capelin.api import Resource
from capelin.json_text import NOT_JSON, TOO_DEEP

log = logging.getLogger(__name__)

_REMEMBERED: Final = 1000
_REASON_CHARACTERS: Final = 500
_MAX_PROBLEMS: Final = 5


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object that is not readable as its kind. Lists and watches continue without it."""

    resource: Resource
    namespace: str
    """Empty for cluster-scoped objects."""
    name: str
    uid: str
    version: str
    """Its resourceVersion."""
    reason: str
    """Why the object is unreadable, without values, which may be those of a Secret."""

    @classmethod
    def of(cls, resource: Resource, metadata: Mapping[str, Any], reason: str) -> "UnreadableObject":
        def text(key: str) -> str:
            value: object = metadata.get(key)
            return value if isinstance(value, str) else ""

        return cls(
            resource,
            text("namespace"),
            text("name"),
            text("uid"),
            text("resourceVersion"),
            reason,
        )

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.resource.kind} {where}"


class UnreadableLog:
    """Logs each unreadable object once, however often it is listed and watched."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()

    def report(self, unreadable: UnreadableObject) -> None:
        if unreadable.uid in self._known:
            self._known.move_to_end(unreadable.uid)
            return
        self._known[unreadable.uid] = None
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        log.warning(
            "%s cannot be read and is skipped until it changes: %s", unreadable, unreadable.reason
        )


def reason_of(error: ValueError) -> str:
    """Why an object is unreadable: paths of fields and rules, but never a value."""
    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    if any(problem["type"] == "json_invalid" for problem in problems):
        deep = any("recursion limit" in problem["msg"] for problem in problems)
        return TOO_DEEP if deep else NOT_JSON
    text = "; ".join(
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
        for problem in problems[:_MAX_PROBLEMS]
    )
    # Any user can choose the keys of a map.
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown[:_REASON_CHARACTERS]
