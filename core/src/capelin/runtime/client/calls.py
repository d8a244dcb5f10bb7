"""A call of a hook server: a request to a handler, and its response."""

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson

from capelin.api import Unstructured
from capelin.runtime.catalog import AnyHook, Catalog, Hook, deprecation_notice
from capelin.runtime.client.discovery import problems_of
from capelin.runtime.client.endpoint import Endpoint
from capelin.runtime.client.errors import DiscoveryError
from capelin.runtime.client.http import Connections
from capelin.runtime.client.responses import read_response
from capelin.runtime.messages import Response
from capelin.runtime.v1alpha1 import Discovery, ExtensionHandler
from capelin.runtime.v1alpha1.discovery import DEFAULT_TIMEOUT_SECONDS

log = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT", bound=Response)


async def call(
    connections: Connections,
    endpoint: Endpoint,
    hook: type[Hook[Any, ResponseT]],
    request: Unstructured | Mapping[str, Any],
    *,
    handler: str | None = None,
    label: str | None = None,
    seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> ResponseT:
    """Send a request to a handler and return its successful response.

    Args:
        connections: The connections to use.
        endpoint: The server.
        hook: The hook, in the version of the handler.
        request: The request as JSON. `apiVersion` and `kind` are those of the hook.
        handler: The name in the path, or `None` for discovery.
        label: The handler's name in messages, by default `handler`.
        seconds: The timeout.

    Raises:
        NoResponseError: The call brought no response.
        RefusedError: The handler failed.
        EndpointError: The endpoint or the client certificate is unusable.
    """
    label = label or handler or "discovery"
    response = await connections.post(
        endpoint, endpoint.path(hook.id.path(handler)), encode(hook, request), seconds=seconds
    )
    response.check(label)
    return read_response(label, hook.response_type(), response.body)


def encode(hook: AnyHook, request: Mapping[str, Any]) -> bytes:
    """A request in wire format."""
    head = {"apiVersion": hook.id.api_version, "kind": hook.request_type().__name__}
    return orjson.dumps({**request, **head})


async def discover(
    connections: Connections, endpoint: Endpoint, *, name: str, catalog: Catalog
) -> list[ExtensionHandler]:
    """The handlers of a server, if Cluster API accepts them. Logs deprecated hooks.

    Raises:
        NoResponseError: The server does not respond.
        RefusedError: Discovery failed.
        DiscoveryError: Cluster API would reject the handlers.
    """
    label = f"discovery of {name}"
    handlers = (await call(connections, endpoint, Discovery, {}, label=label)).handlers
    if problems := problems_of(handlers, catalog):
        raise DiscoveryError(name, problems)
    for handler in handlers:
        hook = catalog.find(handler.request_hook.api_version, handler.request_hook.hook)
        if (notice := deprecation_notice(hook)) is not None:
            log.warning("%s.%s serves a deprecated hook: %s", handler.name, name, notice)
    return handlers
