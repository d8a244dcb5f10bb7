"""Calling handlers: which of them, in which version, and what their answers come to."""

import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import orjson

from capelin.api.views.capi import ExtensionConfig
from capelin.runtime.calling.addresses import Address, address_of
from capelin.runtime.calling.answers import Merge, check_status, read_answer, success, usual_merge
from capelin.runtime.calling.connections import Connections, Identity
from capelin.runtime.calling.discovery import SaidHandlers, accepted, problems_of
from capelin.runtime.calling.errors import (
    DiscoveryError,
    NoAnswerError,
    NotMeantError,
    RefusedError,
    TooManyHandlersError,
    Trouble,
    UnknownHandlerError,
)
from capelin.runtime.calling.metrics import CallMetrics
from capelin.runtime.calling.pacing import About, Backoff, Blocked, Clock, Resting, kept_answers
from capelin.runtime.calling.registry import DEFAULT_TIMEOUT_SECONDS, Registration, Registry
from capelin.runtime.calling.selectors import selects, selects_everything
from capelin.runtime.catalog import AnyHook, Catalog, CatalogError, Hook, HookId
from capelin.runtime.messages import Message, MessageError, Request, Response
from capelin.runtime.v1alpha1 import CLUSTER_API, Discovery

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Response)

_ANSWERED: frozenset[Trouble] = frozenset({"redirect", "status", "unreadable"})
"""Trouble with what the server said: it said something, so it is well itself."""

NamespaceLabels = Callable[[str], Awaitable[Mapping[str, str]]]
"""The labels of a namespace by its name."""


class Caller:
    """Calls the handlers of a registry, as Cluster API calls them.

    A hook is always called in the newest version that the caller knows; handlers for older ones
    get the request, and their answers come back, converted.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        namespace_labels: NamespaceLabels,
        catalog: Catalog = CLUSTER_API,
        identity: Identity | None = None,
        backoff: Backoff | None = None,
        merges: Mapping[AnyHook, Merge] | None = None,
        metrics: CallMetrics | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Begin with nobody called.

        Args:
            registry: The handlers that there are.
            namespace_labels: What the selectors of ExtensionConfigs are held against.
            catalog: The hooks and how their versions convert.
            identity: What to show to servers that want to know who calls.
            backoff: How long to leave a server or handler alone that brought no answer.
            merges: Rules for hooks whose answers say more than when to ask again.
            metrics: What to count with.
            clock: Seconds that only ever grow.
        """
        self.registry = registry
        self._namespace_labels = namespace_labels
        self._catalog = catalog
        self._connections = Connections(identity)
        self._merges = merges or {}
        self._metrics = metrics
        self._resting: Resting[NoAnswerError] = Resting(backoff or Backoff(), clock)
        self._blocked = Blocked(clock)
        self._kept = kept_answers(clock)

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
        """The ExtensionConfig with the handlers that its server has now, for the registry.

        Raises:
            AddressError: it leads nowhere.
            NoAnswerError: the server does not answer.
            RefusedError: the server says no.
            DiscoveryError: Cluster API would not take what it says.
        """
        address, name = address_of(config.spec.client_config), config.metadata.name
        said = await self._ask(
            _Question(
                who=f"the discovery of {name}",
                spoken=Discovery,
                counted=Discovery.id,
                address=address,
                path=address.path(Discovery.id.path()),
                said={},
                seconds=DEFAULT_TIMEOUT_SECONDS,
            ),
            SaidHandlers,
        )
        if problems := problems_of(said.handlers, self._catalog):
            raise DiscoveryError(name, problems)
        discovered = config.model_copy(deep=True)
        discovered.status.handlers = accepted(name, said.handlers)
        return discovered

    async def call(
        self,
        hook: type[Hook[RequestT, ResponseT]],
        name: str,
        request: RequestT,
        *,
        about: About,
        keep_by: Hashable | None = None,
    ) -> ResponseT:
        """The answer of one handler; a success that says nothing where its policy is `Ignore`.

        Args:
            hook: The hook in the newest version.
            name: The handler, as `handler.extension`.
            request: What to ask.
            about: What it is about; the handler has to be for its namespace.
            keep_by: What the answer depends on. An answer to the same is kept for ten minutes.

        Raises:
            UnknownHandlerError: there is no such handler for this hook.
            NotMeantError: it is not for this namespace.
            NoAnswerError: the call brought no answer.
            RefusedError: the handler says no.
        """
        handler = self.registry.get(name)
        if (handler.hook.group, handler.hook.name) != (hook.id.group, hook.id.name):
            raise UnknownHandlerError(f"{name} is a handler for {handler.hook}, not for {hook.id}")
        if not await self._is_meant(handler, about):
            raise NotMeantError(f"{name} is not for namespace {about.namespace}")
        request = _with_settings(request, handler.settings)
        key = None
        if keep_by is not None:
            settings = (
                tuple(sorted(request.settings.items())) if isinstance(request, Request) else ()
            )
            key = (name, handler.revision, hook.id, settings, keep_by)
            if (kept := self._kept.get(key)) is not None:
                return cast("ResponseT", kept)
        try:
            response = await self._call(hook, handler, request)
        except (NoAnswerError, CatalogError) as error:
            if not handler.ignores_trouble:
                raise
            try:
                return cast("ResponseT", success(hook))
            except MessageError:
                # Nobody could tell an answer that is not there from one that was made up.
                raise error from None
        if key is not None:
            self._kept.put(key, response)
        return response

    async def call_all(
        self, hook: type[Hook[RequestT, ResponseT]], request: RequestT, *, about: About
    ) -> ResponseT:
        """One answer for all handlers of the hook that are for the namespace.

        They are called one after the other, up to the first that fails. While an answer holds the
        object back, nobody is called.

        Raises:
            NoMergeRuleError: there are several handlers, and part of their answers would be lost.
            NoHandlerError: there is no handler, and an answer to this hook has to say something.
            TooManyHandlersError: the hook takes one handler, and there are more.
            NoAnswerError: a call brought no answer.
            RefusedError: a handler says no.
        """
        if (blocking := self._blocked.still(hook, about)) is not None:
            return cast("ResponseT", blocking)
        names = [
            handler.name
            for handler in self.registry.handlers(hook)
            if await self._is_meant(handler, about)
        ]
        if hook.exclusive and len(names) > 1:
            raise TooManyHandlersError(
                f"{hook.id.name} takes the answer of one handler, and for namespace"
                f" {about.namespace} there are several: {', '.join(names)}"
            )
        # Known before anybody is called, whose answer nobody could use.
        merge = self._merges.get(hook) or usual_merge(hook, handlers=len(names))
        response = merge(
            hook, [await self.call(hook, name, request, about=about) for name in names]
        )
        self._blocked.note(hook, about, response)
        return cast("ResponseT", response)

    async def _is_meant(self, handler: Registration, about: About) -> bool:
        if selects_everything(handler.namespaces):
            return True
        return selects(handler.namespaces, await self._namespace_labels(about.namespace))

    async def _call(
        self, hook: type[Hook[Any, ResponseT]], handler: Registration, request: Message
    ) -> ResponseT:
        spoken = self._catalog.find(handler.hook.api_version, handler.hook.name)
        question = _Question(
            who=handler.name,
            spoken=spoken,
            counted=hook.id,
            address=handler.address,
            path=handler.path,
            said=self._catalog.older_request(request, hook, spoken).dump(),
            seconds=handler.timeout_seconds,
        )
        response = await self._ask(question, spoken.response_type())
        return cast("ResponseT", self._catalog.newer_response(response, spoken, hook))

    async def _ask(self, question: "_Question", kind: type[ResponseT]) -> ResponseT:
        server, handler = question.address, (question.address, question.path)
        if (why := self._resting.why(server) or self._resting.why(handler)) is not None:
            raise NoAnswerError(why.trouble, str(why), reached=why.reached)
        start, code, status = time.perf_counter(), "<error>", "Unknown"
        try:
            answer = await self._connections.post(
                server, question.path, question.body(), seconds=question.seconds
            )
            code = str(answer.status)
            check_status(question.who, answer)
            response = read_answer(question.who, kind, answer.body)
            status = response.status
        except NoAnswerError as error:
            self._resting.failed(handler if error.reached else server, error)
            if error.trouble in _ANSWERED:
                self._resting.answered(server)
            raise
        except RefusedError as error:
            status = error.status or status
            self._resting.answered(server, handler)
            raise
        else:
            self._resting.answered(server, handler)
            return response
        finally:
            if self._metrics is not None:
                took = time.perf_counter() - start
                self._metrics.called(server.authority, question.counted, code, status, took)


@dataclass(frozen=True, slots=True)
class _Question:
    """One call, ready to be made."""

    who: str
    spoken: AnyHook
    """The hook in the handler's version."""
    counted: HookId
    """The hook in the caller's version."""
    address: Address
    path: str
    said: dict[str, Any]
    seconds: float

    def body(self) -> bytes:
        kind = self.spoken.request_type().__name__
        return orjson.dumps({**self.said, "apiVersion": self.spoken.id.api_version, "kind": kind})


def _with_settings(request: RequestT, settings: Mapping[str, str]) -> RequestT:
    """The request with the ExtensionConfig's settings; its own count more."""
    if not isinstance(request, Request):
        return request
    return request.model_copy(update={"settings": {**settings, **request.settings}})
