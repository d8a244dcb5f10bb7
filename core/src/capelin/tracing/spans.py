"""The spans of OpenTelemetry. Only processes that export them import this module."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from capelin.tracing import Headers, Span

_FIRST_ERROR: Final = 400
_HEADERS: Final = (b"traceparent", b"tracestate")
_PROPAGATOR: Final = TraceContextTextMapPropagator()


def otlp_provider(service: str, environ: Mapping[str, str]) -> trace.TracerProvider:
    """A provider that exports over HTTP. Its libraries read the other variables themselves."""
    is_named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if is_named else {"service.name": service})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    # For spans of reconcilers and handlers themselves.
    trace.set_tracer_provider(provider)
    return provider


def _parent(headers: Headers) -> Context:
    """The remote span that a request names. Root, if it names none or is invalid."""
    return _PROPAGATOR.extract(
        {name.decode(): value.decode("latin-1") for name, value in headers if name in _HEADERS}
    )


class _Recorded(Span):
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def end(self, result: str, *, failed: bool) -> None:
        self._span.set_attribute("capelin.result", result)
        if failed:
            self._span.set_status(Status(StatusCode.ERROR))


class Spans:
    """Records spans."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("capelin")

    @contextmanager
    def span(
        self, operation: str, subject: str, headers: Headers | None, attributes: Mapping[str, str]
    ) -> Generator[Span]:
        """See `capelin.tracing.span`."""
        with self._tracer.start_as_current_span(
            f"{operation} {subject}",
            context=None if headers is None else _parent(headers),
            kind=SpanKind.INTERNAL if headers is None else SpanKind.SERVER,
            attributes={f"capelin.{name}": value for name, value in attributes.items()},
            # The message of an exception may contain a secret.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield _Recorded(span)

    def of_client(self, *, propagate: bool) -> aiohttp.TraceConfig:
        """See `capelin.tracing.client_traces`. Attributes omit the query and the body."""

        async def start(
            _: object, context: SimpleNamespace, params: aiohttp.TraceRequestStartParams
        ) -> None:
            context.span = None
            if not trace.get_current_span().get_span_context().is_valid:
                return
            context.span = self._tracer.start_span(
                params.method,
                kind=SpanKind.CLIENT,
                attributes={
                    "http.request.method": params.method,
                    "server.address": params.url.host or "",
                    "server.port": params.url.port or 0,
                    "url.path": params.url.path,
                },
            )
            if propagate:
                parent = trace.set_span_in_context(context.span)
                _PROPAGATOR.inject(params.headers, parent)

        async def end(
            _: object, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
        ) -> None:
            finish(context, "http.response.status_code", params.response.status)

        async def fail(
            _: object, context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
        ) -> None:
            finish(context, "error.type", type(params.exception).__name__)

        def finish(context: SimpleNamespace, name: str, value: Any) -> None:
            span: trace.Span | None = context.span
            if span is not None:
                span.set_attribute(name, value)
                if isinstance(value, str) or value >= _FIRST_ERROR:
                    span.set_status(Status(StatusCode.ERROR))
                span.end()

        config = aiohttp.TraceConfig()
        config.on_request_start.append(start)
        config.on_request_end.append(end)
        config.on_request_exception.append(fail)
        return config
