"""Spans of reconciles, hook calls and requests to API servers, for OpenTelemetry.

Nothing is traced, and no library is imported, until `configure` finds an exporter in the standard
variables `OTEL_...`.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aiohttp import TraceConfig
    from opentelemetry.trace import TracerProvider

    from capelin.tracing.spans import Spans

_log = logging.getLogger(__name__)

Headers = Iterable[tuple[bytes, bytes]]


_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Span:
    """A span that is not recorded."""

    def end(self, result: str, *, failed: bool) -> None:
        """Record the result of the work."""


_NOT_RECORDED: Final = nullcontext(Span())
_spans: "Spans | None" = None


def configure(service: str, environ: Mapping[str, str]) -> None:
    """Export spans over OTLP, if the environment variables of OpenTelemetry ask for it.

    Args:
        service: The name of the service, unless the variables name it.
        environ: The environment.
    """
    has_endpoint = any(map(environ.get, _ENDPOINTS))
    exporter = environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if has_endpoint else "none")
    if exporter == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    if (exporter, protocol) != ("otlp", "http/protobuf"):
        _log.warning("Spans are not exported: %s over %s is not supported", exporter, protocol)
        return
    try:
        from capelin.tracing.spans import otlp_provider  # noqa: PLC0415
    except ImportError as error:
        _log.warning("Spans are not exported: install capelin-core[tracing] (%s)", error)
        return
    trace_with(otlp_provider(service, environ))


def trace_with(provider: "TracerProvider | None") -> None:
    """Record spans with a provider, or no more."""
    global _spans  # noqa: PLW0603 - one for the process, as in OpenTelemetry
    _spans = None
    if provider is not None:
        from capelin.tracing.spans import Spans  # noqa: PLC0415

        _spans = Spans(provider)


def span(
    operation: str, subject: str, headers: Headers | None = None, /, **attributes: str
) -> AbstractContextManager[Span]:
    """A span for a block, and the parent of all spans inside. Secrets must not be attributes.

    Args:
        operation: The kind of work.
        subject: Its subject, of which there are few.
        headers: The headers of the request that the block serves: the span continues their trace.
        **attributes: The attributes, without the prefix `capelin.`.
    """
    if _spans is None:
        return _NOT_RECORDED
    return _spans.span(operation, subject, headers, attributes)


def client_traces(*, propagate: bool) -> "tuple[TraceConfig, ...]":
    """Traces of a session's requests inside other spans.

    Args:
        propagate: Whether the server learns the ID of the trace.
    """
    return () if _spans is None else (_spans.of_client(propagate=propagate),)
