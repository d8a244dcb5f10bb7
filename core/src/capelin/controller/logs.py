"""Log lines, as text or JSON: each with the object and the reconcile it is about, never a secret.

Nothing has to be remembered where a line is written: whole objects become their names, key
material and tokens are struck out of the finished line, and libraries stay quiet.
"""

import json
import logging
import re
import sys
import traceback
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, cast

from pydantic import ValidationError

from capelin.api import BaseObject
from capelin.controller.results import ObjectKey

_HIDDEN = "(hidden)"
_SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<=Bearer )[-\w.~+/=]+"
    r"|eyJ[-\w]{8,}\.eyJ[-\w]{8,}\.[-\w]+"  # a JSON web token
    r"|LS0tLS1CRUdJTi[\w+/=]+",  # "-----BEGIN " in base64
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a reconcile is about."""

    controller: str
    key: ObjectKey
    reconcile_id: str


_subject: ContextVar[Subject | None] = ContextVar("capelin_log_subject", default=None)


@contextmanager
def about(subject: Subject) -> Generator[None]:
    """Every line logged in this block, by whomever, carries its subject."""
    token = _subject.set(subject)
    try:
        yield
    finally:
        _subject.reset(token)


def configure(
    form: Literal["text", "json"], verbosity: int, stream: TextIO | None = None
) -> logging.Handler:
    """Send all logging of this process to one place, and choose how much of it there is."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    handler.addFilter(_is_news)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbosity else logging.INFO)
    for library in ("aiohttp", "asyncio"):
        logging.getLogger(library).setLevel(logging.DEBUG if verbosity > 1 else logging.WARNING)
    # It warns about what is not used here: signals, peering, resources it does not know yet.
    logging.getLogger("kopf").setLevel(logging.DEBUG if verbosity > 1 else logging.ERROR)
    return handler


def _is_news(record: logging.LogRecord) -> bool:
    # kopf leaves its stream of events to the loop, which at its end may fail to close it: nothing
    # that anybody could mend, or has to.
    said = str(record.msg)
    return record.name != "asyncio" or not (
        said.startswith("an error occurred during closing of asynchronous generator")
        and "infinite_watch" in said
    )


class _Lines(logging.Formatter):
    def message(self, record: logging.LogRecord) -> str:
        if not record.args:
            return hide(str(record.msg))
        said = logging.makeLogRecord(record.__dict__)
        if isinstance(record.args, tuple):
            said.args = tuple(_harmless(value) for value in record.args)
        else:
            # One mapping: for `%(name)s`, or an object on its own for `%s`.
            shown = _harmless(record.args)
            said.args = shown if isinstance(shown, dict) else (shown,)
        return hide(said.getMessage())

    def trouble(self, record: logging.LogRecord) -> str:
        """The exception of a record, if it has one, with its traceback and what caused it."""
        error = record.exc_info[1] if record.exc_info else None
        told: list[str] = []
        while error is not None:
            trace = "".join(traceback.format_tb(error.__traceback__))
            told.append(f"{trace}{type(error).__name__}: {explained(error)}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return hide("\ncaused by\n".join(told))

    def moment(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, UTC)
        return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextLines(_Lines):
    """One line for people, and the traceback under it where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        subject = _subject.get()
        where = f"{subject.controller} {subject.key} [{subject.reconcile_id}]: " if subject else ""
        line = f"{self.moment(record)} {record.levelname:<7} {where}{self.message(record)}"
        trouble = self.trouble(record)
        return f"{line}\n{trouble}" if trouble else line


class JsonLines(_Lines):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        line = {
            "time": self.moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
        }
        if subject := _subject.get():
            line |= {
                "controller": subject.controller,
                "namespace": subject.key.namespace,
                "name": subject.key.name,
                "reconcileID": subject.reconcile_id,
            }
        if trouble := self.trouble(record):
            line["error"] = trouble
        return json.dumps(line, ensure_ascii=False)


def explained(error: BaseException) -> str:
    """An exception in words that quote no value it stumbled over."""
    if isinstance(error, ValidationError):
        # Its own words show the input, which can be the content of a Secret.
        return "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or error.title}: {problem['msg']}"
            for problem in error.errors(include_input=False, include_context=False)
        )
    return str(error)


def hide(text: str) -> str:
    """The text without private keys and tokens."""
    return _SECRETS.sub(_HIDDEN, text)


def _harmless(value: object) -> object:
    """What to print for a value: objects by name, bytes by size, the rest as it is."""
    match value:
        case BaseObject():
            return _reference(value.resource.kind, value.namespace, value.name)
        case Mapping():
            return _mapping(cast("Mapping[Any, Any]", value))
        case bytes() | bytearray():
            return f"({len(value)} bytes)"
        case list() | tuple() | set() | frozenset():
            return [_harmless(item) for item in cast("Iterable[object]", value)]
        case BaseException():
            return explained(value)
        case _:
            return value


def _mapping(value: Mapping[Any, Any]) -> object:
    metadata = value.get("metadata")
    if isinstance(metadata, Mapping):
        named = cast("Mapping[str, Any]", metadata)
        return _reference(value.get("kind", "object"), named.get("namespace"), named.get("name"))
    hidden = {"data", "stringData"} & value.keys()
    return {key: _HIDDEN if key in hidden else _harmless(item) for key, item in value.items()}


def _reference(kind: object, namespace: object, name: object) -> str:
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
