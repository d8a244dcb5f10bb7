import io
import json
import logging
from collections.abc import Callable
from typing import Any, Literal

import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.controller.logs import LogContext, explained, log_context
from pydantic import BaseModel, ValidationError

PASSWORD = "hunter2-and-then-some"
PEM = f"-----BEGIN EC PRIVATE KEY-----\n{PASSWORD}\n-----END EC PRIVATE KEY-----\n"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.c2lnbmF0dXJl"

Start = Callable[[Literal["text", "json"], int], io.StringIO]
log = logging.getLogger("capelin.test")


def fail(why: str) -> None:
    raise RuntimeError(why)


def secret() -> Secret:
    return Secret.of("ca", "default", data={"tls.key": PASSWORD.encode()})


def test_a_text_line_names_controller_object_and_reconcile(start: Start) -> None:
    stream = start("text", 0)
    with log_context(LogContext("shoal", "sea", "herring", "1f2e3d4c")):
        log.info("Moved %d fish", 3)
    line = stream.getvalue()
    assert line.endswith("Z INFO    shoal sea/herring [1f2e3d4c]: Moved 3 fish\n")


def test_a_json_line_has_the_context_in_fields(start: Start) -> None:
    stream = start("json", 0)
    with log_context(LogContext("shoal", "sea", "herring", "1f2e3d4c")):
        log.warning("Moved %d fish", 3)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "capelin.test",
        "message": "Moved 3 fish",
        "controller": "shoal",
        "namespace": "sea",
        "name": "herring",
        "reconcileID": "1f2e3d4c",
    }


def test_a_line_outside_of_a_reconcile_has_no_object(start: Start) -> None:
    stream = start("json", 0)
    log.info("Started")
    assert json.loads(stream.getvalue()).keys() == {"time", "level", "logger", "message"}


def test_a_message_may_have_named_values(start: Start) -> None:
    stream = start("text", 0)
    log.info("%(count)d %(what)s", {"count": 3, "what": "fish"})
    assert stream.getvalue().endswith("3 fish\n")


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_is_logged_with_location_and_cause(
    start: Start, form: Literal["text", "json"]
) -> None:
    stream = start(form, 0)
    try:
        try:
            fail("no herring")
        except RuntimeError:
            fail("no fish")
    except RuntimeError:
        log.exception("Failed")
    text = stream.getvalue() if form == "text" else json.loads(stream.getvalue())["error"]
    assert "test_logs.py" in text
    assert "RuntimeError: no fish\ncaused by\n" in text
    assert text.strip().endswith("RuntimeError: no herring")


@pytest.mark.parametrize(
    ("verbosity", "expected"),
    [(0, "info"), (1, "info debug"), (2, "info debug kopf aiohttp asyncssh")],
)
def test_higher_verbosity_logs_more(start: Start, verbosity: int, expected: str) -> None:
    stream = start("text", verbosity)
    log.info("info")
    log.debug("debug")
    logging.getLogger("kopf.reactor").info("kopf")
    logging.getLogger("aiohttp.client").debug("aiohttp")
    logging.getLogger("asyncssh").info("asyncssh")
    words = [line.rpartition(" ")[2] for line in stream.getvalue().splitlines()]
    assert " ".join(words) == expected


def test_errors_about_closing_a_kopf_watch_are_not_logged(start: Start) -> None:
    stream = start("text", 0)
    message = (
        "an error occurred during closing of asynchronous generator <async_generator object {}>"
    )
    for generator in ("infinite_watch at 0x1", "pages at 0x2"):
        logging.getLogger("asyncio").error(message.format(generator))
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("pages at 0x2>")


SECRETIVE: list[tuple[str, Any]] = [
    ("an object", secret()),
    ("an object as JSON", secret().dump()),
    ("objects in a list", [secret()]),
    ("objects deep inside", {"found": ({"here": secret().dump()},)}),
    ("only its data", {"data": {"tls.key": PASSWORD}}),
    ("only its data as text", {"stringData": {"tls.key": PASSWORD}}),
    ("bytes", PASSWORD.encode()),
    ("bytes in a list", [PASSWORD.encode()]),
    ("a private key", PEM),
    ("half a private key", PEM[:60]),
    ("a header", f"Authorization: Bearer {PASSWORD}"),
    ("an exception", RuntimeError(PEM)),
]


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(("what", "value"), SECRETIVE, ids=[what for what, _ in SECRETIVE])
def test_no_log_line_contains_a_secret(
    start: Start, form: Literal["text", "json"], what: str, value: Any
) -> None:
    stream = start(form, 2)
    log.debug("Look at %s: %s", what, value)
    log.debug("%s", value)
    log.debug("%(value)s", {"value": value})
    try:
        fail(value if isinstance(value, str) else "")
    except RuntimeError:
        log.exception("%r", value)
    assert "hunter2" not in stream.getvalue()
    assert stream.getvalue().count("\n") >= 4


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (secret(), "Secret default/ca"),
        (secret().dump(), "Secret default/ca"),
        ([ConfigMap.of("a")], "['ConfigMap a']"),
        (b"12345", "(5 bytes)"),
        ({"a": 1, "data": {"b": "c"}}, "{'a': 1, 'data': '(hidden)'}"),
        (f"token {TOKEN}.", "token (hidden)."),
        ("key LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0t", "key (hidden)"),
    ],
)
def test_values_are_logged_by_name_or_size(start: Start, value: Any, shown: str) -> None:
    stream = start("text", 0)
    log.info("Value: %s", value)
    assert stream.getvalue().rstrip("\n").endswith(f"Value: {shown}")


class Locked(BaseModel):
    door: int


def test_a_validation_error_is_logged_without_the_value(start: Start) -> None:
    stream = start("text", 0)
    with pytest.raises(ValidationError) as caught:
        Locked.model_validate({"door": PASSWORD})
    assert "hunter2" in str(caught.value)
    log.error("Refused: %s", caught.value)
    assert "hunter2" not in stream.getvalue()
    assert explained(caught.value).startswith("door: Input should be a valid integer")
