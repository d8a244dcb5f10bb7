"""The handlers that are known, by name and by the hook that they answer in whatever version."""

from collections.abc import Iterable
from dataclasses import dataclass

from capelin.api.views.capi import ExtensionConfig
from capelin.api.views.core import LabelSelector
from capelin.runtime.calling.addresses import Address, address_of
from capelin.runtime.calling.errors import UnknownHandlerError
from capelin.runtime.catalog import AnyHook, HookId, Version

DEFAULT_TIMEOUT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Registration:
    """A handler of an extension, and how to call it."""

    name: str
    """`handler.extension`, as ClusterClasses name it."""
    extension: str
    revision: str
    """The ExtensionConfig's resourceVersion: answers from before another one count no more."""
    hook: HookId
    address: Address
    namespaces: LabelSelector | None
    timeout_seconds: int
    ignores_trouble: bool
    """Whether a call without an answer counts as a success."""
    settings: dict[str, str]

    @property
    def path(self) -> str:
        """Where it is called."""
        return self.address.path(self.hook.path(self.name.removesuffix(f".{self.extension}")))


def registrations_of(config: ExtensionConfig) -> list[Registration]:
    """The handlers that an ExtensionConfig's status tells of.

    Raises:
        AddressError: it does not say where they are.
    """
    address = address_of(config.spec.client_config)
    found: list[Registration] = []
    for handler in config.status.handlers:
        group, _, version = handler.request_hook.api_version.rpartition("/")
        found.append(
            Registration(
                name=handler.name,
                extension=config.metadata.name,
                revision=config.metadata.resource_version,
                hook=HookId(group, version, handler.request_hook.hook),
                address=address,
                namespaces=config.spec.namespace_selector,
                timeout_seconds=handler.timeout_seconds or DEFAULT_TIMEOUT_SECONDS,
                ignores_trouble=handler.failure_policy == "Ignore",
                settings=config.spec.settings,
            )
        )
    return found


class Registry:
    """All handlers of some ExtensionConfigs."""

    def __init__(self, configs: Iterable[ExtensionConfig] = ()) -> None:
        self._handlers: dict[str, Registration] = {}
        for config in configs:
            self.add(config)

    def add(self, config: ExtensionConfig) -> None:
        """Take in the handlers of an ExtensionConfig, in place of those that it had.

        Raises:
            AddressError: it does not say where they are; what was known of it stays.
        """
        handlers = registrations_of(config)
        self.remove(config.metadata.name)
        self._handlers.update((handler.name, handler) for handler in handlers)

    def remove(self, extension: str) -> None:
        """Forget all handlers of an ExtensionConfig."""
        self._handlers = {
            name: handler
            for name, handler in self._handlers.items()
            if handler.extension != extension
        }

    def get(self, name: str) -> Registration:
        """The handler of this name.

        Raises:
            UnknownHandlerError: there is none.
        """
        if (found := self._handlers.get(name)) is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            raise UnknownHandlerError(f"no handler {name} is registered; known: {known}")
        return found

    def handlers(self, hook: AnyHook) -> list[Registration]:
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
