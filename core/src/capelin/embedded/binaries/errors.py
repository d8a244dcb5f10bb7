"""Errors of looking for, downloading and building programs."""

from collections.abc import Sequence


class BinariesError(Exception):
    """A program cannot be provided, or the request for it is invalid."""


class UnknownComponentError(BinariesError, ValueError):
    """Capelin does not know this component, or not this version of it."""


class SourceFailedError(BinariesError):
    """One source did not provide the program; the next one may."""


class NotObtainableError(BinariesError):
    def __init__(self, what: str, attempts: Sequence[tuple[str, str]], advice: str) -> None:
        tried = "".join(f"\n  {source}: {reason}" for source, reason in attempts)
        super().__init__(f"{what} could not be had. What was tried:{tried}\n{advice}")
        self.attempts = tuple(attempts)
