import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import orjson
import pytest
from capelin.api import Model
from capelin.runtime.catalog import AnyHook
from capelin.runtime.dispatch import HandlerRunner, handler_runners
from capelin.runtime.extension import Call, Extension
from capelin.runtime.messages import Response
from capelin.runtime.results import Failure, proceed, retry_after
from capelin.runtime.v1alpha1 import (
    AfterControlPlaneInitialized,
    BeforeClusterCreate,
    BeforeClusterCreateResponse,
    Discovery,
    GeneratePatches,
    GeneratePatchesResponse,
    GeneratePatchesResponseItem,
)

API_VERSION = "hooks.runtime.cluster.x-k8s.io/v1alpha1"
CLUSTER = {"metadata": {"name": "demo", "namespace": "default"}}
BODY = orjson.dumps({"cluster": CLUSTER, "settings": {"replicas": "3"}})


class Settings(Model):
    replicas: int
    token: str = ""


def succeed(_: object) -> None:
    """The shortest handler."""


def returning(result: object) -> Callable[[object], object]:
    return lambda _: result


def endpoint(
    function: Callable[[Call[Any, Any]], object],
    hook: AnyHook = BeforeClusterCreate,
    **registration: Any,
) -> HandlerRunner:
    ext = Extension("guard")
    handler: Any = function
    ext.handler(hook, name="try", **registration)(handler)
    return handler_runners(ext)[hook.id.path("try")]


async def response_of(
    function: Any, hook: AnyHook = BeforeClusterCreate, body: bytes = BODY, **registration: Any
) -> dict[str, Any]:
    response = await endpoint(function, hook, **registration).respond(body)
    document = orjson.loads(response.body)
    assert document.pop("apiVersion") == API_VERSION
    assert document.pop("kind") == hook.response_type().__name__
    return {**document, "outcome": response.outcome}


SUCCESS = {"status": "Success", "retryAfterSeconds": 0, "outcome": "success"}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, SUCCESS),
        (proceed(), SUCCESS),
        (proceed("fine"), {**SUCCESS, "message": "fine"}),
        (
            retry_after(30, "no room"),
            {
                "status": "Success",
                "message": "no room",
                "retryAfterSeconds": 30,
                "outcome": "retry",
            },
        ),
        (
            Failure("no"),
            {"status": "Failure", "message": "no", "retryAfterSeconds": 0, "outcome": "failure"},
        ),
        (BeforeClusterCreateResponse(status="Success", retry_after_seconds=0), SUCCESS),
        (
            BeforeClusterCreateResponse(status="Success", retry_after_seconds=9),
            {"status": "Success", "retryAfterSeconds": 9, "outcome": "retry"},
        ),
        (
            BeforeClusterCreateResponse(status="Failure", message="no", retry_after_seconds=0),
            {"status": "Failure", "message": "no", "retryAfterSeconds": 0, "outcome": "failure"},
        ),
    ],
)
async def test_result_becomes_a_response(result: object, expected: dict[str, Any]) -> None:
    async def handler(_: object) -> object:
        return result

    assert await response_of(handler) == expected


async def test_a_hook_that_does_not_block_has_no_delay_in_its_response() -> None:
    assert await response_of(succeed, AfterControlPlaneInitialized) == {
        "status": "Success",
        "outcome": "success",
    }


async def test_bytes_in_a_response_are_base64() -> None:
    response = GeneratePatchesResponse(
        status="Success",
        items=[GeneratePatchesResponseItem(uid="1", patch_type="JSONPatch", patch=b"[]")],
    )
    answer = await response_of(returning(response), GeneratePatches, b'{"items":[]}')
    assert answer["items"] == [{"uid": "1", "patchType": "JSONPatch", "patch": "W10="}]


async def test_a_handler_receives_the_request_and_its_settings() -> None:
    calls: list[Call[BeforeClusterCreate, Settings]] = []

    async def handler(call: Call[BeforeClusterCreate, Settings]) -> None:
        calls.append(call)

    await response_of(handler, settings=Settings)
    (call,) = calls
    assert call.request.cluster.name == "demo"
    assert call.settings == Settings(replicas=3)


class OtherSettings(Model):
    storage_class: str = ""


def with_another_handler(function: Callable[..., Any]) -> HandlerRunner:
    ext = Extension("guard")
    ext.handler(BeforeClusterCreate, name="try", settings=Settings)(function)
    ext.handler(BeforeClusterCreate, name="other", settings=OtherSettings)(succeed)
    return handler_runners(ext)[BeforeClusterCreate.id.path("try")]


async def test_a_misspelt_setting_is_a_failure_with_its_name() -> None:
    body = orjson.dumps({"cluster": CLUSTER, "settings": {"replicas": "3", "tokn": "s3cret"}})
    response = orjson.loads((await with_another_handler(succeed).respond(body)).body)
    assert response["status"] == "Failure"
    assert response["message"] == (
        "handler try cannot read the request: settings: unknown tokn"
        " (known: replicas, storageClass, token)"
    )


async def test_settings_of_other_handlers_of_the_extension_are_accepted() -> None:
    settings = {"replicas": "3", "storageClass": "fast"}
    body = orjson.dumps({"cluster": CLUSTER, "settings": settings})
    response = orjson.loads((await with_another_handler(succeed).respond(body)).body)
    assert response["status"] == "Success"


NAMED = orjson.dumps({"cluster": {**CLUSTER, "metadata": {"name": "blue", "namespace": "sea"}}})


async def test_blocked_hooks_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    await response_of(returning(retry_after(30, "2 volumes are degraded")), body=NAMED)
    assert "handler try blocks BeforeClusterCreate of Cluster sea/blue for 30 s: 2 volumes are" in (
        caplog.text
    )
    await response_of(returning(Failure("no quota")), body=NAMED)
    assert "handler try failed BeforeClusterCreate of Cluster sea/blue: no quota" in caplog.text
    caplog.clear()
    await response_of(succeed, body=NAMED)
    assert caplog.text == ""


async def test_invalid_settings_fail_without_being_quoted() -> None:
    body = orjson.dumps({"cluster": CLUSTER, "settings": {"replicas": "s3cret"}})
    answer = await response_of(succeed, body=body, settings=Settings)
    assert answer["status"] == "Failure"
    assert answer["message"] == (
        "handler try cannot read the request: settings: replicas: "
        "Input should be a valid integer, unable to parse string as an integer"
    )


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "not JSON: Input is a zero-length, empty document: line 1 column 1 (char 0)"),
        (b"{}", "cluster: Field required"),
        (b"[]", "Input should be a valid dictionary or instance of BeforeClusterCreateRequest"),
    ],
)
async def test_an_unreadable_request_is_a_failure(body: bytes, problem: str) -> None:
    answer = await response_of(succeed, body=body)
    assert answer["status"] == "Failure"
    assert answer["message"] == f"handler try cannot read the request: {problem}"


async def test_a_failure_can_be_raised() -> None:
    def handler(_: object) -> None:
        raise Failure("no room")

    answer = await response_of(handler)
    assert (answer["status"], answer["message"]) == ("Failure", "no room")


@pytest.mark.parametrize(
    ("message", "expected"),
    [(ValueError("no room"), "no room"), ("no room in \udcff", "no room in ?")],
)
@pytest.mark.parametrize("raises", [True, False])
async def test_a_failure_can_have_any_message(message: Any, expected: str, *, raises: bool) -> None:
    def handler(_: object) -> Failure:
        if raises:
            raise Failure(message)
        raise Failure(message)

    answer = await response_of(handler)
    assert (answer["status"], answer["message"]) == ("Failure", expected)


async def test_a_failure_without_a_text_message_is_a_failure_too() -> None:
    failure = Failure("")
    failure.message = cast("Any", object())

    def handler(_: object) -> None:
        raise failure

    answer = await response_of(handler)
    assert answer["message"] == "handler try failed with AttributeError (see its log)"


async def test_exceptions_are_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handler(_: object) -> None:
        raise ConnectionError("password s3cret at 12:00:01")

    answer = await response_of(handler)
    assert answer["status"] == "Failure"
    assert answer["message"] == "handler try failed with ConnectionError (see its log)"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "handler try failed" in caplog.text
    assert "in handler" in caplog.text


@pytest.mark.parametrize(
    ("hook", "body", "result"),
    [
        (AfterControlPlaneInitialized, BODY, retry_after(1, "later")),
        (BeforeClusterCreate, BODY, "fine"),
        (BeforeClusterCreate, BODY, GeneratePatchesResponse(status="Success")),
    ],
)
async def test_a_response_of_another_hook_is_a_failure(
    hook: AnyHook, body: bytes, result: object, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await response_of(returning(result), hook, body)
    assert answer["message"] == "handler try failed with TypeError (see its log)"
    assert f"{type(result).__name__} is not a response of {hook.id.name}" in caplog.text


def recording_its_thread() -> tuple[Callable[[object], None], list[int]]:
    threads: list[int] = []
    return lambda _call: threads.append(threading.get_ident()), threads


async def test_a_plain_handler_of_a_blocking_hook_runs_in_a_thread() -> None:
    function, threads = recording_its_thread()
    await response_of(function)
    assert threads != [threading.get_ident()]
    assert not endpoint(function).blocks_loop


async def test_a_plain_handler_of_a_pure_hook_runs_in_the_event_loop() -> None:
    function, threads = recording_its_thread()
    await response_of(function, GeneratePatches, b'{"items":[]}')
    assert threads == [threading.get_ident()]
    assert endpoint(function, GeneratePatches).blocks_loop


async def test_an_async_handler_is_awaited_for_every_hook() -> None:
    async def handler(_: object) -> Response:
        await asyncio.sleep(0)
        return proceed("waited")

    assert not endpoint(handler, GeneratePatches).blocks_loop
    answer = await response_of(handler, GeneratePatches, b'{"items":[]}')
    assert answer["message"] == "waited"


@pytest.mark.parametrize("hook", [BeforeClusterCreate, GeneratePatches])
async def test_an_awaitable_result_of_a_plain_handler_is_awaited(hook: AnyHook) -> None:
    async def waiting() -> Response:
        await asyncio.sleep(0)
        return proceed("waited")

    def handler(_: object) -> object:
        return waiting()

    body = BODY if hook is BeforeClusterCreate else b'{"items":[]}'
    answer = await response_of(handler, hook, body)
    assert answer["message"] == "waited"


async def test_discovery_returns_the_registered_handlers() -> None:
    ext = Extension("guard")
    ext.handler(BeforeClusterCreate, name="quota")(succeed)
    discovery = handler_runners(ext)[Discovery.id.path()]
    answer = orjson.loads((await discovery.respond(b"{}")).body)
    assert answer == {
        "apiVersion": API_VERSION,
        "kind": "DiscoveryResponse",
        **ext.discovery().dump(),
    }


async def test_equal_responses_have_equal_bytes() -> None:
    gate = endpoint(returning(retry_after(5, "later")))
    assert await gate.respond(BODY) == await gate.respond(BODY)
