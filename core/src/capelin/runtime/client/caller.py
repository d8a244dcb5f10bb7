"""Calls the handlers of a registry, in any version of their hook, as Cluster API does."""

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from capelin.api.capi import ExtensionConfig
from capelin.client import Backoff, CircuitBreaker, Clock
from capelin.runtime.catalog import AnyHook, Catalog, Hook, HookId, deprecation_notice
from capelin.runtime.client.backoff import BlockedCalls, NamespacedName, response_cache
from capelin.runtime.client.calls import call, discover
from capelin.runtime.client.discovery import accepted
from capelin.runtime.client.endpoint import Endpoint, endpoint_of
from capelin.runtime.client.errors import (
    DiscoveryError,
    FailureKind,
    NamespaceMismatchError,
    NoResponseError,
    RefusedError,
    TooManyHandlersError,
    UnknownHandlerError,
)
from capelin.runtime.client.http import ClientCertificate, Connections
from capelin.runtime.client.metrics import CallMetrics
from capelin.runtime.client.registry import (
    RegisteredHandler,
    Registry,
    selects,
    selects_everything,
)
from capelin.runtime.client.responses import Merge, default_merge, success_response
from capelin.runtime.messages import Message, MessageError, Request, Response
from capelin.runtime.v1alpha1 import CLUSTER_API, Discovery
from capelin.runtime.versions import CatalogError

log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Response)
ResultT = TypeVar("ResultT")

_RESPONDED: frozenset[FailureKind] = frozenset({"redirect", "status", "unreadable"})
"""The server itself works: it sent a response, although not one that can be used."""

NamespaceLabels = Callable[[str], Awaitable[Mapping[str, str]]]
"""Returns the labels of a namespace."""


class Caller:
    """Calls the handlers of a registry, as Cluster API calls them.

    The caller uses the newest version of each hook. For handlers of older ones, the request and
    the response are converted.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        namespace_labels: NamespaceLabels,
        catalog: Catalog = CLUSTER_API,
        client_certificate: ClientCertificate | None = None,
        backoff: Backoff | None = None,
        merges: Mapping[AnyHook, Merge] | None = None,
        metrics: CallMetrics | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Start with an empty cache.

        Args:
            registry: The known handlers.
            namespace_labels: Looks up what the selectors of ExtensionConfigs match.
            catalog: The hooks and how their versions convert.
            client_certificate: For servers that verify their clients.
            backoff: How long to pause calls to a server or handler that brought no response.
            merges: Rules for hooks whose responses have more than a message and a retry time.
            metrics: What to count with.
            clock: Monotonic seconds.

        Raises:
            CatalogError: the catalog is inconsistent.
        """
        catalog.check()
        self.registry = registry
        self._namespace_labels = namespace_labels
        self._catalog = catalog
        self._connections = Connections(client_certificate)
        self._merges = merges or {}
        self._metrics = metrics
        self._breaker: CircuitBreaker[NoResponseError] = CircuitBreaker(backoff or Backoff(), clock)
        self._blocked = BlockedCalls(clock)
        self._cache = response_cache(clock)
        self._warned: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._connections.close()

    async def discover(self, config: ExtensionConfig) -> ExtensionConfig:
        """Discover the handlers and return the ExtensionConfig with them in its status.

        Raises:
            EndpointError: its client configuration is invalid.
            NoResponseError: the server does not respond.
            RefusedError: discovery failed.
            DiscoveryError: Cluster API would refuse the handlers.
        """
        endpoint, name = endpoint_of(config.spec.client_config), config.metadata.name
        handlers = await self._exchange(
            endpoint,
            endpoint.path(Discovery.id.path()),
            Discovery.id,
            discover(self._connections, endpoint, name=name, catalog=self._catalog),
        )
        for handler in handlers:
            hook = handler.request_hook
            served = self._catalog.find(hook.api_version, hook.hook)
            self._warn(f"{handler.name}.{name}", served)
        discovered = config.model_copy(deep=True)
        discovered.status.handlers = accepted(name, handlers)
        return discovered

    async def call(
        self,
        hook: type[Hook[RequestT, ResponseT]],
        name: str,
        request: RequestT,
        *,
        about: NamespacedName,
        cache_key: Hashable | None = None,
    ) -> ResponseT:
        """Call one handler. Without a response, policy `Ignore` makes it an empty success.

        Args:
            hook: The hook in the newest version.
            name: The handler, as `handler.extension`.
            request: The request.
            about: The object of the call; the handler must be for its namespace.
            cache_key: What the response depends on; it is cached under it for ten minutes.

        Raises:
            UnknownHandlerError: there is no such handler for this hook.
            NamespaceMismatchError: it is not for this namespace.
            NoResponseError: the call brought no response.
            RefusedError: the handler failed.
        """
        handler = self.registry.get(name)
        if (handler.hook.group, handler.hook.name) != (hook.id.group, hook.id.name):
            raise UnknownHandlerError(f"{name} serves {handler.hook}, not {hook.id}")
        if not await self._matches(handler, about):
            raise NamespaceMismatchError(f"{name} is not for namespace {about.namespace}")
        request = _with_settings(request, handler.settings)
        key = None
        if cache_key is not None:
            settings = (
                tuple(sorted(request.settings.items())) if isinstance(request, Request) else ()
            )
            key = (name, handler.revision, hook.id, settings, cache_key)
            if (cached := self._cache.get(key)) is not None:
                return cast("ResponseT", cached)
        try:
            response = await self._call(hook, handler, request)
        except (NoResponseError, CatalogError) as error:
            if not handler.ignores_failures:
                raise
            try:
                return cast("ResponseT", success_response(hook))
            except MessageError:
                # An invented response would look like a real one.
                raise error from None
        if key is not None:
            self._cache.put(key, response)
        return response

    async def call_all(
        self, hook: type[Hook[RequestT, ResponseT]], request: RequestT, *, about: NamespacedName
    ) -> ResponseT:
        """Call all handlers of the hook for the namespace and merge their responses.

        They are called one after the other, up to the first failure. While an earlier response
        blocks the object, no handler is called.

        Raises:
            NoMergeRuleError: the responses of several handlers cannot be merged without loss.
            NoHandlerError: there is no handler, and the response cannot be empty.
            TooManyHandlersError: the hook allows one handler, and there are more.
            NoResponseError: a call brought no response.
            RefusedError: a handler failed.
        """
        if (blocking := self._blocked.current(hook, about)) is not None:
            return cast("ResponseT", blocking)
        names = [
            handler.name
            for handler in self.registry.handlers(hook)
            if await self._matches(handler, about)
        ]
        if hook.exclusive and len(names) > 1:
            raise TooManyHandlersError(
                f"{hook.id.name} allows one handler, and namespace {about.namespace} has several:"
                f" {', '.join(names)}"
            )
        # Before any call: without a rule, no response could be used.
        merge = self._merges.get(hook) or default_merge(hook, handlers=len(names))
        response = merge(
            hook, [await self.call(hook, name, request, about=about) for name in names]
        )
        self._blocked.add(hook, about, response)
        return cast("ResponseT", response)

    async def _matches(self, handler: RegisteredHandler, about: NamespacedName) -> bool:
        if selects_everything(handler.namespaces):
            return True
        return selects(handler.namespaces, await self._namespace_labels(about.namespace))

    async def _call(
        self, hook: type[Hook[Any, ResponseT]], handler: RegisteredHandler, request: Message
    ) -> ResponseT:
        own = self._catalog.find(handler.hook.api_version, handler.hook.name)
        self._warn(handler.name, own)
        response = await self._exchange(
            handler.endpoint,
            handler.path,
            hook.id,
            call(
                self._connections,
                handler.endpoint,
                own,
                self._catalog.older_request(request, hook, own).dump(),
                handler=handler.path_name,
                label=handler.name,
                seconds=handler.timeout_seconds,
            ),
        )
        return cast("ResponseT", self._catalog.newer_response(response, own, hook))

    def _warn(self, handler: str, hook: AnyHook) -> None:
        """Log once for each handler that it serves a deprecated version of a hook."""
        notice = deprecation_notice(hook)
        if notice is not None and handler not in self._warned:
            self._warned.add(handler)
            log.warning("%s serves a deprecated hook: %s", handler, notice)

    async def _exchange(
        self, server: Endpoint, path: str, hook: HookId, exchange: Coroutine[Any, Any, ResultT]
    ) -> ResultT:
        """Run an exchange, unless its server or handler is paused; and count it."""
        handler = (server, path)
        if (error := self._breaker.error(server) or self._breaker.error(handler)) is not None:
            exchange.close()
            raise NoResponseError(error.failure_kind, str(error), reached=error.reached)
        start, code, status = time.perf_counter(), "<error>", "Unknown"
        try:
            result = await exchange
        except NoResponseError as error:
            code = code if error.http_status is None else str(error.http_status)
            self._breaker.failed(handler if error.reached else server, error)
            if error.failure_kind in _RESPONDED:
                self._breaker.succeeded(server)
            raise
        except RefusedError as error:
            code, status = "200", error.status or status
            self._breaker.succeeded(server, handler)
            raise
        except DiscoveryError:
            code, status = "200", "Success"
            self._breaker.succeeded(server, handler)
            raise
        else:
            code, status = "200", "Success"
            self._breaker.succeeded(server, handler)
            return result
        finally:
            if self._metrics is not None:
                seconds = time.perf_counter() - start
                self._metrics.called(server.authority, hook, code, status, seconds)


def _with_settings(request: RequestT, settings: Mapping[str, str]) -> RequestT:
    """The request with the ExtensionConfig's settings; its own take precedence."""
    if not isinstance(request, Request):
        return request
    return request.model_copy(update={"settings": {**settings, **request.settings}})
