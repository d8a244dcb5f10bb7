"""The known hooks, by group, version and name."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args

from capelin.runtime.messages import Message, Response, RetryResponse
from capelin.runtime.versions import (
    CatalogError,
    Deprecation,
    Version,
    check_replacement,
    end_of_support,
)

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Response)
HookT = TypeVar("HookT", bound="Hook[Any, Any]")

_GROUP = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class HookId:
    """The identity of one version of a hook."""

    group: str
    version: str
    name: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"

    def path(self, handler: str | None = None) -> str:
        """The URL path of the hook, or of one handler for it."""
        path = f"/{self.group}/{self.version}/{self.name.lower()}"
        return path if handler is None else f"{path}/{handler.lower()}"

    def __str__(self) -> str:
        return f"{self.name} {self.api_version}"


class Hook(Generic[RequestT, ResponseT]):
    """One version of one hook. `Catalog.hook` sets the attributes."""

    id: ClassVar[HookId]
    summary: ClassVar[str]
    tag: ClassVar[str]
    singleton: ClassVar[bool]
    """A server has only one, without a handler's name in its path."""
    exclusive: ClassVar[bool]
    """The caller accepts at most one handler for it in the whole management cluster."""
    pure: ClassVar[bool]
    """Callable at any time, dry runs included: the response depends only on the request."""
    deprecated: ClassVar[Deprecation | None]

    @classmethod
    def request_type(cls) -> type[RequestT]:
        return _message_types(cls)[0]

    @classmethod
    def response_type(cls) -> type[ResponseT]:
        return _message_types(cls)[1]

    @classmethod
    def blocks(cls) -> bool:
        """Whether a handler can make the caller wait with `retryAfterSeconds`."""
        return issubclass(cls.response_type(), RetryResponse)

    @classmethod
    def description(cls) -> str:
        """The purpose of the hook, from its docstring."""
        return inspect.getdoc(cls) or ""


AnyHook = type[Hook[Any, Any]]


class Catalog:
    """A set of hooks, several versions of each side by side."""

    def __init__(self) -> None:
        self._hooks: dict[HookId, AnyHook] = {}

    def hook(
        self,
        api_version: str,
        *,
        summary: str,
        tag: str,
        singleton: bool = False,
        exclusive: bool = False,
        pure: bool = False,
        deprecated: Deprecation | None = None,
    ) -> Callable[[type[HookT]], type[HookT]]:
        """Register a class as a hook of this name.

        Raises:
            CatalogError: The group or version is malformed, the catalog already has the hook, or
                its replacement is less stable.
        """
        group, _, version = api_version.rpartition("/")
        if not _GROUP.fullmatch(group):
            raise CatalogError(f"{api_version!r} is not GROUP/VERSION, such as example.com/v1")
        Version.parse(version)
        if deprecated is not None:
            check_replacement(version, deprecated)

        def register(cls: type[HookT]) -> type[HookT]:
            cls.id = HookId(group, version, cls.__name__)
            cls.summary, cls.tag = summary, tag
            cls.singleton, cls.exclusive, cls.pure = singleton, exclusive, pure
            cls.deprecated = deprecated
            if cls.id in self._hooks:
                raise CatalogError(f"{cls.id} is in the catalog already")
            _message_types(cls)
            self._hooks[cls.id] = cls
            return cls

        return register

    def joined(self, *others: "Catalog") -> "Catalog":
        """A catalog that also has the hooks of the others.

        Raises:
            CatalogError: Two catalogs have different hooks with the same name.
        """
        made = Catalog()
        for catalog in (self, *others):
            for hook in catalog:
                if made._hooks.setdefault(hook.id, hook) is not hook:
                    raise CatalogError(f"two catalogs have a hook {hook.id}, and not the same one")
        return made

    def check(self) -> None:
        """Check the catalog as a whole, once all hooks are registered.

        Raises:
            CatalogError: The replacement of a deprecated hook does not exist.
        """
        for hook in self:
            if hook.deprecated is None:
                continue
            replacement = HookId(hook.id.group, hook.deprecated.replaced_by, hook.id.name)
            if replacement not in self._hooks:
                raise CatalogError(
                    f"{hook.id} is deprecated in favour of {replacement.version}, which this"
                    f" catalog does not have. Register it, or leave {hook.id.version} undeprecated"
                )

    def __iter__(self) -> Iterator[AnyHook]:
        return iter(self._hooks.values())

    def find(self, api_version: str, name: str) -> AnyHook:
        """The hook of this version and name.

        Raises:
            CatalogError: The catalog does not have it.
        """
        group, _, version = api_version.rpartition("/")
        try:
            return self._hooks[HookId(group, version, name)]
        except KeyError:
            known = ", ".join(sorted({str(hook.id) for hook in self})) or "none"
            raise CatalogError(
                f"no hook {name} {api_version} in this catalog (known: {known})"
            ) from None


def deprecation_notice(hook: AnyHook) -> str | None:
    """The warning for users of a deprecated hook, or None if the hook is not deprecated."""
    if hook.deprecated is None:
        return None
    day, release = end_of_support(hook.id.version, hook.deprecated)
    return (
        f"{hook.id} is deprecated since release {hook.deprecated.release}: use"
        f" {hook.deprecated.replaced_by}. It may be removed in release {release}, not before"
        f" {day}"
    )


def load_catalog(reference: str) -> Catalog:
    """The catalog in a module, from `module:name`.

    Raises:
        CatalogError: It does not exist, or is inconsistent.
    """
    module, colon, name = reference.partition(":")
    if not (module and colon and name):
        raise CatalogError(f"{reference!r} does not name a catalog. Write it as module:name")
    try:
        found = getattr(importlib.import_module(module), name, None)
    # Importing can raise anything.
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise CatalogError(f"module {module} cannot be imported ({why})") from error
    if not isinstance(found, Catalog):
        raise CatalogError(f"module {module} has no catalog {name}")
    found.check()
    return found


def _message_types(hook: AnyHook) -> tuple[type[Any], type[Any]]:
    for base in getattr(hook, "__orig_bases__", ()):
        types = get_args(base)
        if len(types) == 2 and all(isinstance(kind, type) for kind in types):
            return cast("tuple[type[Any], type[Any]]", types)
    raise CatalogError(
        f"{hook.__name__} does not declare its messages: class X(Hook[XRequest, XResponse])"
    )
