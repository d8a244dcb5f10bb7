"""Errors of finding, downloading and building binaries."""

from collections.abc import Sequence


class BinariesError(Exception):
    """A binary is not available, or the request for it is invalid."""


class UnknownComponentError(BinariesError, ValueError):
    """Capelin does not know this component, or not in this version."""


class SourceFailedError(BinariesError):
    """One source did not provide the binary. The next one may."""


class WantedByAnotherError(BinariesError):
    """Another process waits for the binary, and provides it faster than a build in background."""


class NotObtainableError(BinariesError):
    def __init__(self, what: str, attempts: Sequence[tuple[str, str]], advice: str) -> None:
        tried = "".join(f"\n  {source}: {reason}" for source, reason in attempts)
        super().__init__(f"{what} is not available. Attempts:{tried}\n{advice}")
        self.attempts = tuple(attempts)
