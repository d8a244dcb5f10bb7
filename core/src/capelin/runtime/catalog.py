"""The hooks that are known, by group, version and name, and how their versions convert."""

import importlib
import inspect
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
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
OldRequestT = TypeVar("OldRequestT", bound=Message)
OldResponseT = TypeVar("OldResponseT", bound=Response)
HookT = TypeVar("HookT", bound="Hook[Any, Any]")

_GROUP = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class HookId:
    """What tells one version of one hook from all others."""

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
    """One version of one hook. `Catalog.hook` fills in what is not the author's to say."""

    id: ClassVar[HookId]
    summary: ClassVar[str]
    tag: ClassVar[str]
    singleton: ClassVar[bool]
    """There is one on a server, without a handler's name in its path."""
    exclusive: ClassVar[bool]
    """The caller accepts at most one handler for it in the whole management cluster."""
    pure: ClassVar[bool]
    """Probe at any time, dry runs included: the answer follows from the request alone."""
    deprecated: ClassVar[Deprecation | None]

    @classmethod
    def request_type(cls) -> type[RequestT]:
        return _message_types(cls)[0]

    @classmethod
    def response_type(cls) -> type[ResponseT]:
        return _message_types(cls)[1]

    @classmethod
    def blocks(cls) -> bool:
        """Whether a handler can hold the caller back with `retryAfterSeconds`."""
        return issubclass(cls.response_type(), RetryResponse)

    @classmethod
    def description(cls) -> str:
        """What the hook is for, from its docstring."""
        return inspect.getdoc(cls) or ""


AnyHook = type[Hook[Any, Any]]


@dataclass(frozen=True, slots=True)
class Conversion:
    """How a newer version of a hook talks to a handler for an older one."""

    newer: AnyHook
    older: AnyHook
    request: Callable[[Any], Any]
    """Makes an older request from a newer one; may lose what the older cannot say."""
    response: Callable[[Any], Any]
    """Makes a newer response from an older one."""


class Catalog:
    """A set of hooks, several versions of each side by side."""

    def __init__(self) -> None:
        self._hooks: dict[HookId, AnyHook] = {}
        self._conversions: dict[tuple[HookId, HookId], Conversion] = {}

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
            CatalogError: the group or version is malformed, the hook is there already, or what is
                to replace it is less stable.
        """
        group, _, version = api_version.rpartition("/")
        if not _GROUP.fullmatch(group):
            raise CatalogError(f"{api_version!r} is not a group and a version, as example.com/v1")
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

    def conversion(
        self,
        newer: type[Hook[RequestT, ResponseT]],
        older: type[Hook[OldRequestT, OldResponseT]],
        *,
        request: Callable[[RequestT], OldRequestT],
        response: Callable[[OldResponseT], ResponseT],
    ) -> None:
        """Register how a caller on the newer version talks to a handler for the older one.

        Raises:
            CatalogError: they are not two versions of one hook, in this order, in this catalog.
        """
        for hook in (newer, older):
            self.find(hook.id.api_version, hook.id.name)
        if (newer.id.group, newer.id.name) != (older.id.group, older.id.name):
            raise CatalogError(f"{newer.id} and {older.id} are not versions of one hook")
        if Version.parse(newer.id.version) <= Version.parse(older.id.version):
            raise CatalogError(f"{newer.id} is not newer than {older.id}")
        if (newer.id, older.id) in self._conversions:
            raise CatalogError(f"{newer.id} has a conversion to {older.id} already")
        self._conversions[newer.id, older.id] = Conversion(newer, older, request, response)

    def joined(self, *others: "Catalog") -> "Catalog":
        """A catalog with the hooks and conversions of these as well.

        Raises:
            CatalogError: two of them mean different hooks by the same name.
        """
        made = Catalog()
        for catalog in (self, *others):
            for hook in catalog:
                if made._hooks.setdefault(hook.id, hook) is not hook:
                    raise CatalogError(f"two catalogs have a hook {hook.id}, and not the same one")
            made._conversions.update({(c.newer.id, c.older.id): c for c in catalog.conversions})
        return made

    def check(self) -> None:
        """Check the catalog as a whole, once all hooks are registered.

        Raises:
            CatalogError: a hook is deprecated, and the version that replaces it does not exist.
        """
        for hook in self:
            if hook.deprecated is None:
                continue
            replacement = HookId(hook.id.group, hook.deprecated.replaced_by, hook.id.name)
            if replacement not in self._hooks:
                raise CatalogError(
                    f"{hook.id} is deprecated in favour of {replacement.version}, which this"
                    f" catalog does not have; register it, or leave {hook.id.version} undeprecated"
                )

    def __iter__(self) -> Iterator[AnyHook]:
        return iter(self._hooks.values())

    @property
    def conversions(self) -> tuple[Conversion, ...]:
        return tuple(self._conversions.values())

    def find(self, api_version: str, name: str) -> AnyHook:
        """The hook of this version and name.

        Raises:
            CatalogError: there is none.
        """
        group, _, version = api_version.rpartition("/")
        try:
            return self._hooks[HookId(group, version, name)]
        except KeyError:
            known = ", ".join(sorted({str(hook.id) for hook in self})) or "none"
            raise CatalogError(
                f"no hook {name} {api_version} in this catalog; known: {known}"
            ) from None

    def versions(self, hook: AnyHook) -> list[AnyHook]:
        """All versions of a hook, the newest first."""
        same = (h for h in self if (h.id.group, h.id.name) == (hook.id.group, hook.id.name))
        return sorted(same, key=lambda h: Version.parse(h.id.version), reverse=True)

    def older_request(self, request: Message, newer: AnyHook, older: AnyHook) -> Message:
        """The request as a handler for the older version of the hook understands it."""
        converted = request
        for step in self._way(newer, older):
            converted = step.request(converted)
        return converted

    def newer_response(self, response: Response, older: AnyHook, newer: AnyHook) -> Response:
        """The response of a handler for the older version as the newer version says it."""
        converted = response
        for step in reversed(self._way(newer, older)):
            converted = step.response(converted)
        return converted

    def _way(self, newer: AnyHook, older: AnyHook) -> list[Conversion]:
        """The fewest conversions that lead down from one version to another."""
        ways: deque[tuple[HookId, list[Conversion]]] = deque([(newer.id, [])])
        visited = {newer.id}
        while ways:
            version, way = ways.popleft()
            if version == older.id:
                return way
            for (start, end), step in self._conversions.items():
                if start == version and end not in visited:
                    visited.add(end)
                    ways.append((end, [*way, step]))
        raise CatalogError(f"no conversion leads from {newer.id} to {older.id}")


def removal_problems(
    released: Catalog, present: Catalog, *, today: date, release: str
) -> list[str]:
    """Which hooks a catalog must still have, by the catalog of the previous release.

    A stable or beta version may be removed when it was deprecated, and its support has ended.

    Args:
        released: The catalog of the previous release.
        present: The catalog of the release that is being made.
        today: The day of that release.
        release: That release, as `1.16`.
    """
    kept = {hook.id for hook in present}
    problems: list[str] = []
    for hook in released:
        if hook.id in kept:
            continue
        if hook.deprecated is None:
            if Version.parse(hook.id.version).track != "alpha":
                problems.append(f"{hook.id} was never deprecated and must stay")
            continue
        end = end_of_support(hook.id.version, hook.deprecated)
        if not end.has_come(today, release):
            problems.append(
                f"{hook.id} is supported until release {end.release} and {end.on}, and must stay"
            )
    return problems


def deprecation_notice(hook: AnyHook) -> str | None:
    """The warning for users of a deprecated hook, or None if the hook is not deprecated."""
    if hook.deprecated is None:
        return None
    end = end_of_support(hook.id.version, hook.deprecated)
    return (
        f"{hook.id} is deprecated since release {hook.deprecated.release}: use"
        f" {hook.deprecated.replaced_by}; it may be removed in release {end.release}, not before"
        f" {end.on}"
    )


def load_catalog(reference: str) -> Catalog:
    """The catalog that a module holds, as `module:name`.

    Raises:
        CatalogError: there is none, or it is inconsistent.
    """
    module, colon, name = reference.partition(":")
    if not (module and colon and name):
        raise CatalogError(f"{reference!r} names no catalog; write it as module:name")
    try:
        found = getattr(importlib.import_module(module), name, None)
    # Whatever it does when it is imported.
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise CatalogError(f"module {module} cannot be imported ({why})") from error
    if not isinstance(found, Catalog):
        raise CatalogError(f"module {module} has no catalog called {name}")
    found.check()
    return found


def _message_types(hook: AnyHook) -> tuple[type[Any], type[Any]]:
    for base in getattr(hook, "__orig_bases__", ()):
        types = get_args(base)
        if len(types) == 2 and all(isinstance(kind, type) for kind in types):
            return cast("tuple[type[Any], type[Any]]", types)
    raise CatalogError(
        f"{hook.__name__} does not say its messages: class X(Hook[XRequest, XResponse])"
    )
