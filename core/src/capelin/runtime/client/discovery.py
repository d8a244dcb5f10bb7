"""Checks whether Cluster API would accept discovered handlers."""

from collections import Counter
from collections.abc import Iterator, Sequence

from capelin.runtime.catalog import Catalog
from capelin.runtime.v1alpha1 import ExtensionHandler
from capelin.runtime.v1alpha1.discovery import HANDLER_NAME, MAX_TIMEOUT_SECONDS
from capelin.runtime.versions import CatalogError


def repeated_names(handlers: Sequence[ExtensionHandler]) -> Iterator[str]:
    """Names of more than one handler."""
    for name, count in Counter(handler.name for handler in handlers).items():
        if count > 1:
            yield f"{count} handlers have the name {name}"


def malformed_names(handlers: Sequence[ExtensionHandler]) -> Iterator[str]:
    """Names that are not DNS labels."""
    for handler in handlers:
        if not HANDLER_NAME.fullmatch(handler.name):
            yield (
                f"{handler.name!r} is not a valid handler name: use lower-case letters, digits and"
                " dashes, at most 63"
            )


def impossible_timeouts(handlers: Sequence[ExtensionHandler]) -> Iterator[str]:
    """Timeouts that Cluster API rejects."""
    for handler in handlers:
        seconds = handler.timeout_seconds
        if seconds is not None and not 0 <= seconds <= MAX_TIMEOUT_SECONDS:
            yield (
                f"{handler.name} has a timeout of {seconds} seconds: it must be from 0 to"
                f" {MAX_TIMEOUT_SECONDS}"
            )


def unknown_policies(handlers: Sequence[ExtensionHandler]) -> Iterator[str]:
    """Failure policies that do not exist."""
    for handler in handlers:
        if handler.failure_policy not in {None, "Fail", "Ignore"}:
            yield (
                f"{handler.name} has the failure policy {handler.failure_policy!r}: it must be"
                " Fail or Ignore"
            )


def unknown_hooks(handlers: Sequence[ExtensionHandler], catalog: Catalog) -> Iterator[str]:
    """Hooks that the caller does not know."""
    for handler in handlers:
        hook = handler.request_hook
        try:
            catalog.find(hook.api_version, hook.hook)
        except CatalogError:
            yield f"{handler.name} serves {hook.hook} {hook.api_version}, which is not known here"


def problems_of(handlers: Sequence[ExtensionHandler], catalog: Catalog) -> list[str]:
    """Every reason why Cluster API would reject the handlers."""
    return [
        *repeated_names(handlers),
        *malformed_names(handlers),
        *impossible_timeouts(handlers),
        *unknown_policies(handlers),
        *unknown_hooks(handlers, catalog),
    ]
