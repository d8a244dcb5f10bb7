import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import orjson
import pytest
from capelin.api import Model
from capelin.runtime import Catalog, Hook, Request, RetryResponse
from capelin.runtime.dispatch import MAX_THREADS
from capelin.runtime.extension import Call, Extension, InvalidExtensionError
from capelin.runtime.messages import Response
from capelin.runtime.results import proceed, retry_after
from capelin.runtime.server.app import App, time_limit
from capelin.runtime.server.body import MAX_BODY_BYTES
from capelin.runtime.server.deadlines import CallDeadline, Deadlines
from capelin.runtime.server.metrics import Metrics
from capelin.runtime.v1alpha1 import AfterClusterUpgrade, BeforeClusterCreate, Discovery
from capelin.testing.waiting import PATIENCE, until

PATH = BeforeClusterCreate.id.path("try")
BODY = b'{"cluster":{}}'
UPGRADED = b'{"cluster":{},"kubernetesVersion":"v1"}'
HEADERS = {"content-type": "application/json"}


class Client:
    """A request of a server to an ASGI application."""

    def __init__(
        self, *pieces: bytes, path: str = PATH, method: str = "POST", query: bytes = b""
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": [],
            "root_path": "",
        }
        self._pieces = list(pieces or (BODY,))
        self._gone = asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> dict[str, Any]:
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def disconnected(self) -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def call(self, app: App) -> dict[str, Any]:
        await app(self.scope, self.receive, self.send)
        return orjson.loads(self.sent[1]["body"])

    @property
    def headers(self) -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in self.sent[0]["headers"]}


class Counts(Metrics):
    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []

    def count(self, path: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.ended.append((path, outcome))


def app_of(function: Any, **registration: Any) -> tuple[App, Counts]:
    ext = Extension("guard")
    ext.handler(BeforeClusterCreate, name="try", **registration)(function)
    app = App(ext)
    app.metrics = counts = Counts()
    return app, counts


async def succeed(_: object) -> Response:
    return proceed()


async def test_a_hook_call_returns_status_200_and_json() -> None:
    app, counts = app_of(succeed)
    client = Client()
    answer = await client.call(app)
    assert answer["status"] == "Success"
    assert client.sent[0]["status"] == 200
    assert client.headers == {**HEADERS, "content-length": str(len(client.sent[1]["body"]))}
    assert counts.ended == [(PATH, "success")]


async def test_a_failure_returns_status_200_too() -> None:
    app, counts = app_of(succeed)
    client = Client(b"nonsense")
    answer = await client.call(app)
    assert (client.sent[0]["status"], answer["status"]) == (200, "Failure")
    assert counts.ended == [(PATH, "failure")]


def pieces(total: int) -> Iterable[bytes]:
    return [b" " * 2**20] * (total // 2**20) + [b" " * (total % 2**20)]


async def test_a_body_of_twenty_mebibytes_is_accepted() -> None:
    app, _ = app_of(succeed)
    padded = [BODY, *pieces(MAX_BODY_BYTES - len(BODY))]
    answer = await Client(*padded).call(app)
    assert answer["status"] == "Success"


@pytest.mark.parametrize("parts", [1, 20])
async def test_a_larger_body_is_received_completely_and_rejected(parts: int) -> None:
    app, counts = app_of(succeed)
    too_much = b" " * (MAX_BODY_BYTES + 1)
    size = len(too_much) // parts + 1
    client = Client(*(too_much[at : at + size] for at in range(0, len(too_much), size)))
    answer = await client.call(app)
    assert answer["message"] == "handler try accepts no request above 20 MiB"
    assert client.headers["connection"] == "close"
    assert counts.ended == [(PATH, "failure")]


async def test_a_call_ends_at_its_timeout() -> None:
    ended: list[str] = []

    async def endless(_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    app, counts = app_of(endless)
    client = Client(query=b"timeout=20ms")
    answer = await client.call(app)
    assert answer["message"] == "handler try did not respond in time"
    assert answer["status"] == "Failure"
    assert ended == ["cancelled"]
    assert counts.ended == [(PATH, "timeout")]


async def test_a_body_that_never_ends_times_out() -> None:
    app, counts = app_of(succeed)
    client = Client(BODY, b"", query=b"timeout=20ms")

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    client.receive = receive
    answer = await client.call(app)
    assert answer["message"] == "handler try did not respond in time"
    assert client.headers["connection"] == "close"
    assert counts.ended == [(PATH, "timeout")]


async def test_a_plain_handler_that_waits_too_long_times_out() -> None:
    waiting = asyncio.Event()
    loop = asyncio.get_running_loop()

    def sleeper(_: object) -> None:
        asyncio.run_coroutine_threadsafe(waiting.wait(), loop).result()

    app, _ = app_of(sleeper)
    answer = await Client(query=b"timeout=20ms").call(app)
    waiting.set()
    assert answer["message"] == "handler try did not respond in time"


class Hanging:
    """A plain handler that returns when the test releases it."""

    def __init__(self) -> None:
        self._begun = threading.Semaphore(0)
        self.released = threading.Event()

    def __call__(self, _: object) -> Response:
        self._begun.release()
        self.released.wait()
        return proceed("at last")

    async def abandoned(self, app: App, times: int) -> None:
        """Receive calls of clients that do not wait for the response."""
        clients = [Client() for _ in range(times)]
        calls = [asyncio.create_task(app(c.scope, c.receive, c.send)) for c in clients]
        for _ in clients:
            assert await asyncio.to_thread(self._begun.acquire, timeout=PATIENCE)
        for client in clients:
            client.leave()
        await asyncio.gather(*calls)


@pytest.fixture
def hanging() -> Generator[Hanging]:
    handler = Hanging()
    yield handler
    handler.released.set()


async def test_hanging_handlers_do_not_delay_others(
    hanging: Hanging,
) -> None:
    ext = Extension("guard")
    ext.handler(BeforeClusterCreate, name="try")(hanging)

    @ext.handler(AfterClusterUpgrade)
    def other(_: object) -> Response:
        return proceed("fine")

    app = App(ext)
    await hanging.abandoned(app, MAX_THREADS)
    healthy = Client(UPGRADED, path=AfterClusterUpgrade.id.path("other"))
    assert (await healthy.call(app))["message"] == "fine"
    assert (await Client().call(app))["message"] == (
        f"handler try accepts no call while {MAX_THREADS} earlier ones hang. Find the reason,"
        " or restart the extension"
    )


async def test_busy_plain_handlers_accept_all_calls() -> None:
    most = threading.Barrier(MAX_THREADS)

    def meet(_: object) -> Response:
        most.wait()
        return proceed("fine")

    app, _ = app_of(meet)
    answers = await asyncio.gather(*(Client().call(app) for _ in range(2 * MAX_THREADS)))
    assert {answer["message"] for answer in answers} == {"fine"}


async def test_plain_handlers_accept_calls_again_after_hanging_ones_end(hanging: Hanging) -> None:
    app, _ = app_of(hanging)
    await hanging.abandoned(app, MAX_THREADS)
    hanging.released.set()

    async def answer() -> dict[str, Any]:
        return await Client().call(app)

    assert (await until(answer, lambda it: it["status"] == "Success"))["message"] == "at last"


async def test_a_call_ends_when_its_client_disconnects() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(_: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    app, counts = app_of(endless)
    client = Client()
    call = asyncio.create_task(app(client.scope, client.receive, client.send))
    await begun.wait()
    client.leave()
    await call
    assert ended.is_set()
    assert client.sent == []
    assert counts.ended == [(PATH, "abandoned")]


async def test_a_client_that_disconnects_during_its_request_gets_no_response() -> None:
    app, counts = app_of(succeed)
    client = Client(b'{"clus', b"")
    client.receive = client.disconnected
    await app(client.scope, client.receive, client.send)
    assert client.sent == []
    assert counts.ended == [(PATH, "abandoned")]


async def test_cancellation_by_the_server_does_not_count_as_timeout() -> None:
    begun = asyncio.Event()

    async def endless(_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    app, _ = app_of(endless)
    client = Client()
    call = asyncio.create_task(app(client.scope, client.receive, client.send))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert client.sent == []


async def test_an_uncancellable_handler_can_still_return_its_response() -> None:
    async def stubborn(_: object) -> Response:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return proceed("late")

    app, _ = app_of(stubborn)
    answer = await Client(query=b"timeout=20ms").call(app)
    assert answer["message"] == "late"


async def test_a_stubborn_handler_does_not_delay_the_timeout_response() -> None:
    release, ended = asyncio.Event(), asyncio.Event()

    async def stubborn(_: object) -> Response:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        ended.set()
        return proceed("too late")

    app, counts = app_of(stubborn)
    client = Client(query=b"timeout=20ms")
    call = asyncio.create_task(app(client.scope, client.receive, client.send))
    await until(lambda: len(client.sent) == 2)
    assert not call.done()
    release.set()
    await call
    assert ended.is_set()
    answer = orjson.loads(client.sent[1]["body"])
    assert answer["message"] == "handler try did not respond in time"
    assert client.headers["connection"] == "close"
    assert len(client.sent) == 2
    assert counts.ended == [(PATH, "timeout")]


async def test_a_handler_that_fails_after_its_timeout_gets_one_response() -> None:
    release = asyncio.Event()

    async def stubborn(_: object) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()
        return proceed()

    app, counts = app_of(stubborn)
    client = Client(query=b"timeout=20ms")
    call = asyncio.create_task(app(client.scope, client.receive, client.send))
    await until(lambda: len(client.sent) == 2)
    release.set()
    await call
    assert len(client.sent) == 2
    assert counts.ended == [(PATH, "timeout")]


async def test_a_disconnected_client_gets_no_timeout_response() -> None:
    client, responses = Client(), list[str]()

    async def respond_late() -> None:
        responses.append("late")

    async def stubborn() -> None:
        with Deadlines().call(client.receive, 1, respond_late) as call:
            call.body_read = True
            watched.append(call)
            for _ in range(2):
                with suppress(asyncio.CancelledError):
                    await release.wait()

    watched, release = list[CallDeadline](), asyncio.Event()
    client.receive = client.disconnected
    task = asyncio.create_task(stubborn())
    await until(lambda: watched)
    now = asyncio.get_running_loop().time()
    watched[0].check(now)
    await until(task.cancelling)
    for seconds in (2, 3):
        watched[0].check(now + seconds)
    release.set()
    await task
    assert responses == []


async def test_a_finished_call_leaves_no_tasks_or_references() -> None:
    requests: list[weakref.ref[object]] = []

    async def handler(call: Call[BeforeClusterCreate, None]) -> None:
        requests.append(weakref.ref(call.request))
        # Longer than one check of the deadlines.
        await asyncio.sleep(0.06)

    app, _ = app_of(handler)
    tasks = asyncio.all_tasks()
    await Client().call(app)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    gc.collect()
    assert requests[0]() is None


@pytest.mark.parametrize(
    ("seconds", "query", "expected"),
    [
        (10, b"", 9.5),
        (10, b"timeout=10s", 9.5),
        (10, b"timeout=4s", 3.5),
        (10, b"timeout=1s", 0.8),
        (1, b"timeout=30s", 0.8),
        (10, b"timeout=1m0s", 9.5),
        (10, b"timeout=nonsense", 9.5),
        (10, b"other=1&timeout=2.5s", 2.0),
        (10, b"\xff=\xff", 9.5),
    ],
)
def test_time_limit_of_a_call(seconds: int, query: bytes, expected: float) -> None:
    assert time_limit(seconds, query) == pytest.approx(expected)


async def test_a_closing_server_closes_connections_after_the_response() -> None:
    app, _ = app_of(succeed)
    app.closing = True
    client = Client()
    await client.call(app)
    assert client.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", PATH, 404), ("POST", "/nowhere", 404), ("GET", "/nowhere", 404)],
)
async def test_unknown_paths_and_methods_return_404(method: str, path: str, status: int) -> None:
    app, counts = app_of(succeed)
    client = Client(method=method, path=path)
    await app(client.scope, client.receive, client.send)
    assert client.sent[0]["status"] == status
    assert counts.ended == []


async def page(path: str) -> tuple[dict[str, str], bytes]:
    app, _ = app_of(succeed)
    client = Client(method="GET", path=path)
    await app(client.scope, client.receive, client.send)
    assert client.sent[0]["status"] == 200
    return client.headers, b"".join(message.get("body", b"") for message in client.sent[1:])


async def test_the_openapi_document_describes_the_registered_handlers() -> None:
    _, body = await page("/openapi.json")
    document = orjson.loads(body)
    assert document["info"]["title"] == "guard"
    assert list(document["paths"]) == [
        BeforeClusterCreate.id.path("{name}"),
        Discovery.id.path(),
    ]
    (name,) = document["paths"][BeforeClusterCreate.id.path("{name}")]["post"]["parameters"]
    assert name["schema"] == {"type": "string", "enum": [PATH.rpartition("/")[2]]}


ZOO = Catalog()


class OpeningRequest(Request):
    gate: Literal["north"]


class OpeningResponse(RetryResponse):
    visitors: int = 0


@ZOO.hook("zoo.example.com/v1beta1", tag="Zoo", summary="Before the gates open")
class BeforeOpening(Hook[OpeningRequest, OpeningResponse]):
    """Probe every morning."""


class Rain(Model):
    umbrellas: int = 0


async def test_hooks_of_another_group_are_served_and_documented() -> None:
    ext = Extension("zoo")

    @ext.handler(BeforeOpening, settings=Rain)
    def gates(call: Call[BeforeOpening, Rain]) -> OpeningResponse | RetryResponse:
        if not call.settings.umbrellas:
            return retry_after(60, f"no umbrellas at the {call.request.gate} gate")
        return OpeningResponse(status="Success", retry_after_seconds=0, visitors=9)

    app, path = App(ext), "/zoo.example.com/v1beta1/beforeopening/gates"
    (gate,) = (await Client(b"{}", path=Discovery.id.path()).call(app))["handlers"]
    assert gate["requestHook"] == {"apiVersion": "zoo.example.com/v1beta1", "hook": "BeforeOpening"}
    head = {"apiVersion": "zoo.example.com/v1beta1", "kind": "OpeningResponse"}
    assert await Client(b'{"gate":"north"}', path=path).call(app) == {
        **head,
        "status": "Success",
        "message": "no umbrellas at the north gate",
        "retryAfterSeconds": 60,
    }
    dry = Client(b'{"gate":"north","settings":{"umbrellas":"5"}}', path=path)
    assert await dry.call(app) == {
        **head,
        "status": "Success",
        "retryAfterSeconds": 0,
        "visitors": 9,
    }
    client = Client(method="GET", path="/openapi.json")
    await app(client.scope, client.receive, client.send)
    document = orjson.loads(b"".join(message.get("body", b"") for message in client.sent[1:]))
    operation = document["paths"]["/zoo.example.com/v1beta1/beforeopening/{name}"]["post"]
    assert operation["parameters"][0]["schema"]["enum"] == ["gates"]
    types = document["components"]["schemas"]
    assert types[f"{__name__}.OpeningRequest"]["properties"]["gate"]["enum"] == ["north"]


async def test_swagger_ui_needs_no_other_server() -> None:
    _, body = await page("/docs")
    html = body.decode()
    assert "openapi.json" in html
    assert "http://" not in html
    assert "https://" not in html


@pytest.mark.parametrize("asset", ["swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"])
async def test_the_server_serves_the_files_of_swagger_ui(asset: str) -> None:
    _, html = await page("/docs")
    assert f"docs/assets/{asset}" in html.decode()
    _, body = await page(f"/docs/assets/{asset}")
    assert len(body) > 500


def test_an_invalid_extension_is_not_served() -> None:
    ext = Extension("guard")
    ext.handler(BeforeClusterCreate, name="Bad Name")(succeed)
    with pytest.raises(InvalidExtensionError):
        App(ext)


class Server:
    """Lifespan messages of a server to an application."""

    def __init__(self) -> None:
        self.down = asyncio.Event()
        self._up = False
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if not self._up:
            self._up = True
            return {"type": "lifespan.startup"}
        await self.down.wait()
        return {"type": "lifespan.shutdown"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.down.set()


async def test_the_lifespan_of_an_extension_surrounds_that_of_the_server() -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        steps.append("open")
        yield
        steps.append("closed")

    server = Server()
    await App(Extension("guard", lifespan=lifespan))(
        {"type": "lifespan"}, server.receive, server.send
    )
    assert steps == ["open", "closed"]
    assert [message["type"] for message in server.sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]


async def test_a_server_does_not_start_if_the_lifespan_fails() -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        raise ConnectionError("no API server")
        yield

    server = Server()
    with pytest.raises(ConnectionError):
        await App(Extension("guard", lifespan=lifespan))(
            {"type": "lifespan"}, server.receive, server.send
        )
    assert server.sent == [{"type": "lifespan.startup.failed", "message": "no API server"}]
