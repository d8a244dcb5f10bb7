"""What can go wrong between asking for a program and having it."""

from collections.abc import Sequence


class BinariesError(Exception):
    """A Kubernetes program could not be had, or the question made no sense."""


class UnknownProgramError(BinariesError, ValueError):
    """Nobody here knows a component, or a version of it, by that name."""


class WayFailedError(BinariesError):
    """One way to a program did not lead there; the next one may."""


class NotObtainableError(BinariesError):
    """Every way to a program was tried; none led there."""

    def __init__(self, what: str, attempts: Sequence[tuple[str, str]], advice: str) -> None:
        tried = "".join(f"\n  {way}: {reason}" for way, reason in attempts)
        super().__init__(f"{what} could not be had. What was tried:{tried}\n{advice}")
        self.attempts = tuple(attempts)
