"""The known handlers, by name and by hook, and the namespaces that they are for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from capelin.api.capi import ExtensionConfig
from capelin.api.core import LabelSelector
from capelin.runtime.catalog import AnyHook, HookId
from capelin.runtime.client.endpoint import Endpoint, endpoint_of
from capelin.runtime.client.errors import UnknownHandlerError
from capelin.runtime.v1alpha1.discovery import DEFAULT_TIMEOUT_SECONDS
from capelin.runtime.versions import Version


@dataclass(frozen=True, slots=True)
class RegisteredHandler:
    """A handler of an extension, and how to call it."""

    name: str
    """`handler.extension`, as ClusterClasses name it."""
    extension: str
    revision: str
    """The ExtensionConfig's resourceVersion: cached responses of another one are stale."""
    hook: HookId
    endpoint: Endpoint
    namespaces: LabelSelector | None
    timeout_seconds: int
    ignores_failures: bool
    """Whether a call without a response counts as a success."""
    settings: dict[str, str]

    @property
    def path(self) -> str:
        """The URL path of the handler on its server."""
        return self.endpoint.path(self.hook.path(self.path_name))

    @property
    def path_name(self) -> str:
        """The handler's name on its server."""
        return self.name.removesuffix(f".{self.extension}")


def registered_handlers(config: ExtensionConfig) -> list[RegisteredHandler]:
    """The handlers in an ExtensionConfig's status.

    Raises:
        EndpointError: its client configuration is invalid.
    """
    endpoint = endpoint_of(config.spec.client_config)
    found: list[RegisteredHandler] = []
    for handler in config.status.handlers:
        group, _, version = handler.request_hook.api_version.rpartition("/")
        found.append(
            RegisteredHandler(
                name=handler.name,
                extension=config.metadata.name,
                revision=config.metadata.resource_version,
                hook=HookId(group, version, handler.request_hook.hook),
                endpoint=endpoint,
                namespaces=config.spec.namespace_selector,
                timeout_seconds=handler.timeout_seconds or DEFAULT_TIMEOUT_SECONDS,
                ignores_failures=handler.failure_policy == "Ignore",
                settings=config.spec.settings,
            )
        )
    return found


class Registry:
    """All handlers of some ExtensionConfigs."""

    def __init__(self, configs: Iterable[ExtensionConfig] = ()) -> None:
        self._handlers: dict[str, RegisteredHandler] = {}
        for config in configs:
            self.add(config)

    def add(self, config: ExtensionConfig) -> None:
        """Add the handlers of an ExtensionConfig, in place of those that it had.

        Raises:
            EndpointError: its client configuration is invalid; what was known stays.
        """
        handlers = registered_handlers(config)
        self.remove(config.metadata.name)
        self._handlers.update((handler.name, handler) for handler in handlers)

    def remove(self, extension: str) -> None:
        """Forget all handlers of an ExtensionConfig."""
        self._handlers = {
            name: handler
            for name, handler in self._handlers.items()
            if handler.extension != extension
        }

    def get(self, name: str) -> RegisteredHandler:
        """The handler of this name.

        Raises:
            UnknownHandlerError: there is none.
        """
        if (found := self._handlers.get(name)) is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            raise UnknownHandlerError(f"no handler {name} is registered; known: {known}")
        return found

    def handlers(self, hook: AnyHook) -> list[RegisteredHandler]:
        """All handlers for any version of a hook: the newest version first, then by name."""
        found = [
            handler
            for handler in self._handlers.values()
            if (handler.hook.group, handler.hook.name) == (hook.id.group, hook.id.name)
        ]
        by_name = sorted(found, key=lambda handler: handler.name)
        return sorted(
            by_name, key=lambda handler: Version.parse(handler.hook.version), reverse=True
        )


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether the selector matches the labels, as Kubernetes does; no selector matches all.

    Raises:
        ValueError: it has an operator that Kubernetes does not know.
    """
    if selector is None:
        return True
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _matches(requirement, labels) for requirement in selector.match_expressions
    )


def selects_everything(selector: LabelSelector | None) -> bool:
    """Whether the selector matches any labels."""
    return selector is None or not (selector.match_labels or selector.match_expressions)


def _matches(requirement: LabelSelector.Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            # A missing label is not among the values either.
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            raise ValueError(f"unknown selector operator {requirement.operator!r}")
