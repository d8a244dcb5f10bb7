"""Log lines, as text or JSON, each with its object and reconcile, and never with a secret.

Code that logs needs no special care: this shows whole objects as names, removes keys and tokens
from the finished line, and mutes libraries.
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

_HIDDEN = "(hidden)"
_SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<=Bearer )[-\w.~+/=]+"
    r"|(?<![-\w])eyJ[-\w]{8,}\.eyJ[-\w]{8,}\.[-\w]+"  # a JSON web token
    r"|LS0tLS1CRUdJTi[\w+/=]+",  # "-----BEGIN " in base64
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class LogContext:
    """The reconcile that a line belongs to."""

    controller: str
    namespace: str
    name: str
    reconcile_id: str

    def __str__(self) -> str:
        key = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.controller} {key} [{self.reconcile_id}]:"


_current: ContextVar[LogContext | None] = ContextVar("capelin_log_context", default=None)


@contextmanager
def log_context(context: LogContext) -> Generator[None]:
    """Adds the reconcile to every line that is logged in this block, by any library."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def configure(
    form: Literal["text", "json"], verbosity: int, stream: TextIO | None = None
) -> logging.Handler:
    """Send all logging of this process to one stream, at the given verbosity."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    handler.addFilter(_is_news)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbosity else logging.INFO)
    for library in ("aiohttp", "asyncio", "asyncssh"):
        logging.getLogger(library).setLevel(logging.DEBUG if verbosity > 1 else logging.WARNING)
    # It warns about features that we do not use: signals, peering, resources that it does not know.
    logging.getLogger("kopf").setLevel(logging.DEBUG if verbosity > 1 else logging.ERROR)
    # The logger of plain kopf handlers, whose lines kopf also posts as events.
    objects = logging.getLogger("kopf.objects")
    objects.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
    objects.addFilter(_for_users)
    return handler


def _for_users(record: logging.LogRecord) -> bool:
    """Redact a line of a kopf handler, and drop those of our own handlers, which only watch."""
    settings: Any = getattr(record, "settings", None)
    if record.levelno <= logging.INFO and settings and not settings.posting.enabled:
        return False
    record.msg, record.args = redact(record.getMessage()), ()
    return True


def _is_news(record: logging.LogRecord) -> bool:
    # kopf leaves its stream of events to the loop, which may fail to close it at its end. Users
    # cannot fix that and need not.
    message = str(record.msg)
    return record.name != "asyncio" or not (
        message.startswith("an error occurred during closing of asynchronous generator")
        and "infinite_watch" in message
    )


class _Lines(logging.Formatter):
    def message(self, record: logging.LogRecord) -> str:
        if not record.args:
            return redact(str(record.msg))
        copy = logging.makeLogRecord(record.__dict__)
        if isinstance(record.args, tuple):
            copy.args = tuple(_printable(value) for value in record.args)
        else:
            # One mapping: for `%(name)s`, or an object on its own for `%s`.
            shown = _printable(record.args)
            copy.args = shown if isinstance(shown, dict) else (shown,)
        return redact(copy.getMessage())

    def error(self, record: logging.LogRecord) -> str:
        """The exception of a record, if it has one, with its traceback and its causes."""
        error = record.exc_info[1] if record.exc_info else None
        causes: list[str] = []
        while error is not None:
            trace = "".join(traceback.format_tb(error.__traceback__))
            causes.append(f"{trace}{type(error).__name__}: {explained(error)}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return redact("\ncaused by\n".join(causes))

    def moment(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, UTC)
        return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextLines(_Lines):
    """One line for people, followed by the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        context, about = _current.get(), _object_of(record)
        where = f"{context} " if context else f"{about}: " if about else ""
        line = f"{self.moment(record)} {record.levelname:<7} {where}{self.message(record)}"
        error_text = self.error(record)
        return f"{line}\n{error_text}" if error_text else line


class JsonLines(_Lines):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
        }
        if context := _current.get():
            line |= {
                "controller": context.controller,
                "namespace": context.namespace,
                "name": context.name,
                "reconcileID": context.reconcile_id,
            }
        elif about := _object_of(record):
            line["object"] = about
        if error_text := self.error(record):
            line["error"] = error_text
        return json.dumps(line, ensure_ascii=False)


def _object_of(record: logging.LogRecord) -> str:
    """The object of a plain kopf handler's line, or nothing."""
    ref: Any = getattr(record, "k8s_ref", None)
    return _reference(ref["kind"], ref["namespace"], ref["name"]) if ref else ""


def explained(error: BaseException) -> str:
    """The message of an exception, without the values that caused it."""
    if isinstance(error, ValidationError):
        # Its own message shows the input, which can be the content of a Secret.
        return "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or error.title}: {problem['msg']}"
            for problem in error.errors(include_input=False, include_context=False)
        )
    return str(error)


def redact(text: str) -> str:
    """The text without private keys and tokens."""
    return _SECRETS.sub(_HIDDEN, text)


def _printable(value: object) -> object:
    """The printable form of a value: objects by name, bytes by size, others unchanged."""
    match value:
        case BaseObject():
            return _reference(value.resource.kind, value.namespace, value.name)
        case Mapping():
            return _mapping(cast("Mapping[Any, Any]", value))
        case bytes() | bytearray():
            return f"({len(value)} bytes)"
        case list() | tuple() | set() | frozenset():
            return [_printable(item) for item in cast("Iterable[object]", value)]
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
    return {key: _HIDDEN if key in hidden else _printable(item) for key, item in value.items()}


def _reference(kind: object, namespace: object, name: object) -> str:
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
