"""An extension: its handlers, and their discovery."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from pydantic import BaseModel

from capelin.runtime.catalog import AnyHook, Hook
from capelin.runtime.messages import Message, is_whole
from capelin.runtime.results import HandlerResult
from capelin.runtime.v1alpha1 import (
    Discovery,
    DiscoveryResponse,
    ExtensionHandler,
    FailurePolicy,
    GroupVersionHook,
)
from capelin.runtime.v1alpha1.discovery import HANDLER_NAME, MAX_TIMEOUT_SECONDS

HookT = TypeVar("HookT", bound=Hook[Any, Any])
SettingsT = TypeVar("SettingsT", bound=BaseModel)
HookT_co = TypeVar("HookT_co", bound=Hook[Any, Any], covariant=True)
SettingsT_co = TypeVar("SettingsT_co", covariant=True)
RequestT = TypeVar("RequestT", bound=Message)
ResultT = TypeVar("ResultT", bound=Awaitable[HandlerResult] | HandlerResult)

Application = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

_MOUNT = re.compile(r"/[a-z0-9]([-a-z0-9]*[a-z0-9])?")

Lifespan = Callable[[], AbstractAsyncContextManager[object]]
"""Resources that are open while the server runs, for example a client."""


class InvalidExtensionError(ValueError):
    """Cluster API would reject the extension."""


class Call(Generic[HookT_co, SettingsT_co]):
    """One call of a handler: the request and its settings."""

    __slots__ = ("_request", "_settings")

    def __init__(self, request: Message, settings: SettingsT_co) -> None:
        self._request = request
        self._settings = settings

    @property
    def request(self: "Call[Hook[RequestT, Any], Any]") -> RequestT:
        """The request, in the hook's own type."""
        return self._request  # pyright: ignore[reportReturnType] - the server reads that type

    @property
    def settings(self) -> SettingsT_co:
        """The settings of the ExtensionConfig and the ClusterClass, in the handler's own type."""
        return self._settings


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that serves a hook, with its properties for callers."""

    name: str
    hook: AnyHook
    function: Callable[[Call[Any, Any]], Any]
    timeout_seconds: int
    failure_policy: FailurePolicy
    settings: type[BaseModel] | None

    @property
    def path(self) -> str:
        return self.hook.id.path(None if self.hook.singleton else self.name)

    def discovered(self) -> ExtensionHandler:
        return ExtensionHandler(
            name=self.name,
            request_hook=GroupVersionHook(
                api_version=self.hook.id.api_version, hook=self.hook.id.name
            ),
            timeout_seconds=self.timeout_seconds,
            failure_policy=self.failure_policy,
        )


class Extension:
    """A named set of handlers. `capelin.runtime.server.serve` serves it.

    ext = Extension("storage-guard")

    @ext.handler(BeforeClusterUpgrade, timeout_seconds=5)
    async def storage_is_healthy(call: Call[BeforeClusterUpgrade, None]) -> Response: ...
    """

    def __init__(
        self,
        name: str,
        *,
        lifespan: Lifespan | None = None,
        is_discovered: Callable[[Handler], bool] | None = None,
    ) -> None:
        """Start without handlers.

        Args:
            name: The name of the extension.
            lifespan: Resources that are open while the server runs.
            is_discovered: Whether discovery reports a handler now. Default: all. A handler that
                it does not report still serves callers that know it. Touch the ExtensionConfig
                when this changes: Cluster API then runs discovery again.
        """
        self.name = name
        self.lifespan = lifespan
        self._is_discovered = is_discovered
        self._handlers: list[Handler] = []
        self._mounts: dict[str, Application] = {}

    def mount(self, path: str, app: Application) -> None:
        """Serve an ASGI application, such as FastAPI's, for all paths below `path`.

        The server of the hooks serves it, with its certificate, its authentication of clients, its
        bounds of requests, and at most 30 seconds for each. Its lifespan is that of the server.
        `/openapi.json` describes an application of FastAPI together with the hooks.

        Raises:
            InvalidExtensionError: Another application or the server itself has the path.
        """
        if not _MOUNT.fullmatch(path) or path in {"/docs", "/openapi.json"}:
            raise InvalidExtensionError(
                f"{path!r} cannot be the path of an application: write a word such as /reports,"
                " other than /docs"
            )
        if path in self._mounts:
            raise InvalidExtensionError(f"another application has the path {path}")
        self._mounts[path] = app

    @property
    def mounts(self) -> Mapping[str, Application]:
        """The mounted applications by their paths."""
        return self._mounts

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return tuple(self._handlers)

    @overload
    def handler(
        self,
        hook: type[HookT],
        *,
        name: str | None = None,
        timeout_seconds: int = 10,
        failure_policy: FailurePolicy = "Fail",
        settings: None = None,
    ) -> Callable[
        [Callable[[Call[HookT, None]], ResultT]], Callable[[Call[HookT, None]], ResultT]
    ]: ...

    @overload
    def handler(
        self,
        hook: type[HookT],
        *,
        name: str | None = None,
        timeout_seconds: int = 10,
        failure_policy: FailurePolicy = "Fail",
        settings: type[SettingsT],
    ) -> Callable[
        [Callable[[Call[HookT, SettingsT]], ResultT]], Callable[[Call[HookT, SettingsT]], ResultT]
    ]: ...

    def handler(
        self,
        hook: type[HookT],
        *,
        name: str | None = None,
        timeout_seconds: int = 10,
        failure_policy: FailurePolicy = "Fail",
        settings: type[BaseModel] | None = None,
    ) -> Any:
        """Register a function as a handler.

        Async functions are awaited. For pure hooks, plain functions run at once, because they only
        compute. For others they run in a thread of the handler, because they may wait.

        Args:
            hook: The hook that it serves.
            name: Its name for Cluster API, by default the function's with dashes. ClusterClasses
                refer to it.
            timeout_seconds: The caller's timeout, up to 30.
            failure_policy: The caller's reaction to a call without a response.
            settings: The type of the settings.
        """

        def register(function: Any) -> Any:
            self._handlers.append(
                Handler(
                    name=function.__name__.replace("_", "-") if name is None else name,
                    hook=hook,
                    function=function,
                    timeout_seconds=timeout_seconds,
                    failure_policy=failure_policy,
                    settings=settings,
                )
            )
            return function

        return register

    def check(self) -> None:
        """Check that Cluster API would accept the handlers.

        Raises:
            InvalidExtensionError: With all problems. Cluster API rejects all handlers if one is
                invalid.
        """
        problems = list(_problems(self._handlers))
        if problems:
            raise InvalidExtensionError(
                f"Cluster API would reject the extension {self.name}: " + "; ".join(problems)
            )

    def discovery(self) -> DiscoveryResponse:
        return DiscoveryResponse(
            status="Success", handlers=[handler.discovered() for handler in self.discovered]
        )

    @property
    def discovered(self) -> tuple[Handler, ...]:
        """The handlers that discovery reports now."""
        if self._is_discovered is None:
            return tuple(self._handlers)
        return tuple(filter(self._is_discovered, self._handlers))


def _problems(handlers: Sequence[Handler]) -> Iterator[str]:
    unknown = [handler for handler in handlers if not hasattr(handler.hook, "id")]
    for handler in unknown:
        yield (
            f"{handler.name} serves {handler.hook.__name__}, which is in no catalog. Register it"
            ' with @CATALOG.hook("GROUP/VERSION", ...)'
        )
    if not unknown:
        yield from _problems_of_all(handlers)


def _problems_of_all(handlers: Sequence[Handler]) -> Iterator[str]:
    for name, count in Counter(handler.name for handler in handlers).items():
        if count > 1:
            yield f"{count} handlers have the name {name}. Use unique names"
    for hook, count in Counter(handler.hook for handler in handlers).items():
        if count > 1 and hook.exclusive:
            yield f"{hook.id.name} has {count} handlers, but allows only one. Remove the others"
    for handler in _for_others(handlers):
        yield (
            f"{handler.name} serves a hook of {handler.hook.id.group}, which Cluster API does not"
            " support. Serve it from a separate extension"
        )
    for handler in handlers:
        yield from _problems_of(handler)


def _for_others(handlers: Sequence[Handler]) -> list[Handler]:
    """Handlers for other callers, if some are for Cluster API, which discovers them all."""
    others = [handler for handler in handlers if handler.hook.id.group != Discovery.id.group]
    return others if len(others) < len(handlers) else []


def _problems_of(handler: Handler) -> Iterator[str]:
    if not HANDLER_NAME.fullmatch(handler.name):
        yield (
            f"{handler.name!r} is not a valid handler name: use lower-case letters, digits and"
            " dashes, at most 63"
        )
    if not is_whole(handler.timeout_seconds):
        yield (
            f"{handler.name} has a timeout of {handler.timeout_seconds!r} seconds: use a whole"
            " number, 1 to 30"
        )
    elif not 0 < handler.timeout_seconds <= MAX_TIMEOUT_SECONDS:
        yield f"{handler.name} has a timeout of {handler.timeout_seconds} seconds: use 1 to 30"
    if handler.failure_policy not in {"Fail", "Ignore"}:
        yield f"{handler.name} has the failure policy {handler.failure_policy}: use Fail or Ignore"
    hook = handler.hook
    if hook is Discovery:
        yield f"{handler.name} serves {hook.id.name}, which the server serves itself"
    elif hook.singleton:
        yield (
            f"{handler.name} serves {hook.id.name}, whose path has no handler name,"
            " so no caller finds it. Register the hook without singleton"
        )
    if handler.settings is not None and "settings" not in hook.request_type().model_fields:
        yield (
            f"{handler.name} has settings, but requests of {hook.id.name} do not. Derive"
            f" {hook.request_type().__name__} from Request"
        )
