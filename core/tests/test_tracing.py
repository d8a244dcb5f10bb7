"""Spans of reconciles, requests and hook calls, and their export."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from aiohttp import web
from capelin import tracing
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client, ClientOptions, Config, Destinations, Server, Unreachable, User
from capelin.controller import Context, Done, For, ObjectKey, Reconciler, Result
from capelin.controller.diagnostics import Metrics
from capelin.controller.queue import Queue, Timing
from capelin.controller.runner import Runner
from capelin.runtime.extension import Extension
from capelin.runtime.messages import Response
from capelin.runtime.results import proceed
from capelin.runtime.server.app import App
from capelin.runtime.v1alpha1 import BeforeClusterCreate
from capelin.testing.waiting import until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.support.web import api_server

from .runtime.server_process import certificate, serving, write

REMOTE_TRACE, REMOTE_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{REMOTE_TRACE}-{REMOTE_SPAN}-01"
SECRET = "swordfish"
KEY = ObjectKey("sea", "settings")


@pytest.fixture
def spans() -> Generator[InMemorySpanExporter]:
    """The spans that ended."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.trace_with(provider)
    yield exporter
    tracing.trace_with(None)
    provider.shutdown()


class ApiServer:
    """Responds with a ConfigMap, or 404 for Secrets, and stores the headers of requests."""

    def __init__(self) -> None:
        self.parents: list[str | None] = []
        self.url = ""

    async def respond(self, request: web.Request) -> web.Response:
        self.parents.append(request.headers.get("traceparent"))
        if "secrets" in request.path:
            missing = {"kind": "Status", "reason": "NotFound", "details": {"name": "token"}}
            return web.json_response(missing, status=404)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"password": SECRET}}
        return web.json_response(body | {"metadata": {"name": "settings", "namespace": "sea"}})


@pytest.fixture
async def server() -> AsyncGenerator[ApiServer]:
    server = ApiServer()
    async with api_server(server.respond) as server.url:
        yield server


class Angler(Reconciler[ConfigMap]):
    """Reads a Secret, and fails if it should."""

    watches = (For(ConfigMap),)

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def reconcile(self, ctx: Context, _: ConfigMap, /) -> Result:
        await ctx.client.find(Secret, "token", "sea")
        if self.error is not None:
            raise self.error
        return Done()


async def reconcile(server: ApiServer, error: Exception | None = None) -> None:
    """Reconcile the ConfigMap once."""
    queue = Queue(Timing(1e6, 1e6, 1e6), Random(0))  # noqa: S311
    async with Client(Config(Server(server.url), User(token=SECRET))) as client:
        context = Context(client, logging.getLogger("test"), cast("Any", None))
        clock = asyncio.get_running_loop().time
        runner = Runner(
            Angler(error), queue, context, Metrics(), concurrency=1, labels={}, clock=clock
        )
        runner.start()
        runner.add(KEY)
        await until(lambda: not queue.depth and not queue.running_for(0))
        await runner.stop(0)


def text_of(spans: InMemorySpanExporter) -> str:
    return "".join(span.to_json() for span in spans.get_finished_spans())


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_the_requests_of_a_reconcile_are_its_children(
    spans: InMemorySpanExporter, server: ApiServer
) -> None:
    await reconcile(server)
    *requests, parent = spans.get_finished_spans()
    assert parent.name == "reconcile configmap"
    attributes = attributes_of(parent)
    assert len(attributes.pop("capelin.reconcile_id")) == 8
    assert attributes == {
        "capelin.namespace": "sea",
        "capelin.name": "settings",
        "capelin.result": "success",
    }
    assert [attributes_of(span)["url.path"] for span in requests] == [
        "/api/v1/namespaces/sea/configmaps/settings",
        "/api/v1/namespaces/sea/secrets/token",
    ]
    assert [attributes_of(span)["http.response.status_code"] for span in requests] == [200, 404]
    for span, header in zip(requests, server.parents, strict=True):
        assert (span.name, span.kind) == ("GET", SpanKind.CLIENT)
        assert span.parent == parent.context
        assert header is not None
        assert span.context is not None
        _, trace_id, span_id, _ = header.split("-")
        assert (int(trace_id, 16), int(span_id, 16)) == (
            span.context.trace_id,
            span.context.span_id,
        )


async def test_spans_contain_neither_credentials_nor_bodies_nor_messages(
    spans: InMemorySpanExporter, server: ApiServer
) -> None:
    await reconcile(server, ValueError(SECRET))
    async with Client(Config(Server(server.url), User(token=SECRET))) as client:
        with tracing.span("reconcile", "secret"):
            await client.request("GET", "/api/v1/configmaps", parameters={"token": SECRET})
    failed = [span.name for span in spans.get_finished_spans() if not span.status.is_ok]
    assert failed == ["GET", "reconcile configmap"]
    assert SECRET not in text_of(spans)


async def test_requests_outside_of_a_span_and_to_servers_of_tenants_are_not_marked(
    spans: InMemorySpanExporter, server: ApiServer
) -> None:
    config = Config(Server(server.url), User())
    async with Client(config) as client:
        await client.find(ConfigMap, "settings", "sea")
    assert spans.get_finished_spans() == ()
    options = ClientOptions(destinations=Destinations((ip_network("127.0.0.0/8"),)))
    with tracing.span("reconcile", "configmap"):
        async with Client(config, options=options) as client:
            await client.find(ConfigMap, "settings", "sea")
    assert server.parents == [None, None]


async def test_a_failed_connection_is_an_error(spans: InMemorySpanExporter) -> None:
    with socket.socket() as closed, tracing.span("reconcile", "configmap"):
        closed.bind(("127.0.0.1", 0))
        config = Config(Server(f"http://127.0.0.1:{closed.getsockname()[1]}"), User())
        async with Client(config, options=ClientOptions(timeout=0.5)) as client:
            with pytest.raises(Unreachable):
                await client.find(ConfigMap, "settings", "sea")
    request, *_ = spans.get_finished_spans()
    assert request.status.status_code is StatusCode.ERROR
    assert attributes_of(request)["error.type"] == "ClientConnectorError"


@pytest.mark.parametrize(
    ("header", "parent"),
    [(TRACEPARENT, REMOTE_SPAN), ("00-nonsense-01", None), (None, None)],
)
async def test_a_hook_call_continues_the_trace_of_its_request(
    spans: InMemorySpanExporter, header: str | None, parent: str | None
) -> None:
    ext = Extension("guard")

    @ext.handler(BeforeClusterCreate, name="try")
    def handle(_: object) -> Response:
        with tracing.span("work", "inside"):
            return proceed()

    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"cluster":{}}', "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"authorization", SECRET.encode())]
    if header is not None:
        headers.append((b"traceparent", header.encode()))
    path = BeforeClusterCreate.id.path("try")
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
    await App(ext)({**scope, "headers": headers}, receive, send)
    assert sent[0]["status"] == 200
    inside, call = spans.get_finished_spans()
    assert (call.name, call.kind) == ("hook BeforeClusterCreate", SpanKind.SERVER)
    assert attributes_of(call) == {"capelin.handler": "try", "capelin.result": "success"}
    assert inside.parent == call.context
    assert (call.parent and f"{call.parent.span_id:016x}") == parent
    assert SECRET not in text_of(spans)


class Receiver(ThreadingHTTPServer):
    """A receiver of OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Traces)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []


class _Traces(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        message = ExportTraceServiceRequest.FromString(body)
        cast("Receiver", self.server).requests.append((self.path, message))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Log nothing."""


EXPORT = """
import os, sys
from capelin import tracing
tracing.configure("capelin-shoals", os.environ)
with tracing.span("reconcile", "shoal", namespace="sea", name="a") as span:
    span.end("success", failed=False)
"""


@contextmanager
def receiving() -> Generator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()


def exported(**variables: str) -> tuple[Receiver, str]:
    """The receiver of a process after it ended, and the log of the process."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    with receiving() as receiver:
        given = {k: v.replace("ENDPOINT", receiver.url) for k, v in variables.items()}
        done = subprocess.run(
            [sys.executable, "-c", EXPORT],
            env={**environ, "NO_PROXY": "127.0.0.1", **given},
            capture_output=True,
            text=True,
            check=True,
        )
    return receiver, done.stderr


def test_spans_are_exported_to_the_endpoint_of_the_environment() -> None:
    receiver, _ = exported(
        OTEL_EXPORTER_OTLP_ENDPOINT="ENDPOINT", OTEL_RESOURCE_ATTRIBUTES="k8s.pod.name=a"
    )
    ((path, message),) = receiver.requests
    assert path == "/v1/traces"
    (traces,) = message.resource_spans
    resource = {item.key: item.value.string_value for item in traces.resource.attributes}
    assert (resource["service.name"], resource["k8s.pod.name"]) == ("capelin-shoals", "a")
    (span,) = traces.scope_spans[0].spans
    assert span.name == "reconcile shoal"


def test_the_environment_names_the_service() -> None:
    receiver, _ = exported(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="ENDPOINT", OTEL_SERVICE_NAME="mine")
    (traces,) = receiver.requests[0][1].resource_spans
    resource = {item.key: item.value.string_value for item in traces.resource.attributes}
    assert resource["service.name"] == "mine"


@pytest.mark.parametrize(
    ("variables", "log"),
    [
        ({}, ""),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "ENDPOINT"}, ""),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "ENDPOINT"}, ""),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "ENDPOINT"},
            "otlp over grpc is not supported",
        ),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "zipkin over http/protobuf is not supported"),
    ],
)
def test_other_settings_export_nothing(variables: dict[str, str], log: str) -> None:
    receiver, written = exported(**variables)
    assert receiver.requests == []
    assert log in written
    assert bool(log) == bool(written)


def test_without_the_extra_a_warning_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "capelin.tracing.spans", None)
    tracing.configure("capelin-shoals", {"OTEL_TRACES_EXPORTER": "otlp"})
    assert "install capelin-core[tracing]" in caplog.text
    assert tracing.client_traces(propagate=True) == ()


def test_without_configuration_the_libraries_are_not_imported() -> None:
    code = (
        "import os, sys, capelin.controller, capelin.runtime.server\n"
        "from capelin import tracing\n"
        "tracing.configure('shoals', {})\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_server_exports_the_calls_of_its_handlers(tmp_path: Path) -> None:
    write(tmp_path, certificate())
    path = BeforeClusterCreate.id.path("pid")
    with (
        receiving() as receiver,
        serving(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, NO_PROXY="127.0.0.1") as served,
    ):
        connection = served.connect()
        connection.request("POST", path, b'{"cluster":{}}', {"Traceparent": TRACEPARENT})
        assert connection.getresponse().read()
        connection.close()
    spans = [
        span
        for _, message in receiver.requests
        for traces in message.resource_spans
        for span in traces.scope_spans[0].spans
    ]
    ids = [(span.name, span.trace_id.hex(), span.parent_span_id.hex()) for span in spans]
    assert ids == [("hook BeforeClusterCreate", REMOTE_TRACE, REMOTE_SPAN)]
