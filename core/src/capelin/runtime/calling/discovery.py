"""What an extension says that it answers, held against what Cluster API takes."""

from collections import Counter
from collections.abc import Iterator, Sequence

from capelin.api.views.capi.extensions import ExtensionHandler, GroupVersionHook
from capelin.runtime.calling.registry import DEFAULT_TIMEOUT_SECONDS
from capelin.runtime.catalog import Catalog, CatalogError
from capelin.runtime.messages import Int32, Part, Response
from capelin.runtime.v1alpha1.discovery import HANDLER_NAME, MAX_TIMEOUT_SECONDS


class SaidHook(Part):
    """A hook in a version, as it was said."""

    api_version: str = ""
    hook: str = ""


class SaidHandler(Part):
    """A handler as it was said, right or wrong."""

    name: str = ""
    request_hook: SaidHook = SaidHook()
    timeout_seconds: Int32 | None = None
    failure_policy: str | None = None


class SaidHandlers(Response):
    """An answer to discovery, to be looked at before it is believed."""

    handlers: list[SaidHandler] = []


def repeated_names(handlers: Sequence[SaidHandler]) -> Iterator[str]:
    """Names that more than one handler has."""
    for name, count in Counter(handler.name for handler in handlers).items():
        if count > 1:
            yield f"{count} handlers are called {name}"


def malformed_names(handlers: Sequence[SaidHandler]) -> Iterator[str]:
    """Names that are none."""
    for handler in handlers:
        if not HANDLER_NAME.fullmatch(handler.name):
            yield (
                f"{handler.name!r} is no name for a handler: lower-case letters, digits and"
                " dashes, at most 63"
            )


def impossible_timeouts(handlers: Sequence[SaidHandler]) -> Iterator[str]:
    """Timeouts that Cluster API does not wait for."""
    for handler in handlers:
        seconds = handler.timeout_seconds
        if seconds is not None and not 0 <= seconds <= MAX_TIMEOUT_SECONDS:
            yield (
                f"{handler.name} has a timeout of {seconds} seconds: it has to be from 0 to"
                f" {MAX_TIMEOUT_SECONDS}"
            )


def unknown_policies(handlers: Sequence[SaidHandler]) -> Iterator[str]:
    """Failure policies that there are not."""
    for handler in handlers:
        if handler.failure_policy not in {None, "Fail", "Ignore"}:
            yield (
                f"{handler.name} has the failure policy {handler.failure_policy!r}: it has to be"
                " Fail or Ignore"
            )


def unknown_hooks(handlers: Sequence[SaidHandler], catalog: Catalog) -> Iterator[str]:
    """Hooks that the caller does not have."""
    for handler in handlers:
        said = handler.request_hook
        try:
            catalog.find(said.api_version, said.hook)
        except CatalogError:
            yield f"{handler.name} is for {said.hook} {said.api_version}, which is not known here"


def problems_of(handlers: Sequence[SaidHandler], catalog: Catalog) -> list[str]:
    """Everything for which Cluster API would refuse all of the handlers."""
    return [
        *repeated_names(handlers),
        *malformed_names(handlers),
        *impossible_timeouts(handlers),
        *unknown_policies(handlers),
        *unknown_hooks(handlers, catalog),
    ]


def accepted(extension: str, handlers: Sequence[SaidHandler]) -> list[ExtensionHandler]:
    """Handlers as they stand in an ExtensionConfig's status."""
    return [
        ExtensionHandler(
            name=f"{handler.name}.{extension}",
            request_hook=GroupVersionHook(
                api_version=handler.request_hook.api_version, hook=handler.request_hook.hook
            ),
            timeout_seconds=(
                DEFAULT_TIMEOUT_SECONDS
                if handler.timeout_seconds is None
                else handler.timeout_seconds
            ),
            failure_policy=handler.failure_policy or "Fail",
        )
        for handler in handlers
    ]
