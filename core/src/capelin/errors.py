"""Errors that a person can understand and act on: the problem, its cause and the remedy."""

from typing import ClassVar


class UserError(Exception):
    """An error for people. The command prints it without a traceback and exits with its code."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, reason: str = "", hint: str = "") -> None:
        super().__init__(" ".join(filter(None, (message, reason, hint))))
        self.message = message
        self.reason = reason
        self.hint = hint


class InvalidInputError(UserError):
    """The input is invalid, or asks for something that is not possible."""

    exit_code = 2


class UnfitMachineError(UserError):
    """This machine lacks something."""

    exit_code = 3


class MissingError(UserError):
    """The environment, cluster or process does not exist."""

    exit_code = 4


class BusyError(UserError):
    """Another process is changing the same thing."""

    exit_code = 5


class WaitTimeoutError(UserError):
    """Waiting took longer than it was allowed to."""

    exit_code = 6


class NotReadyError(UserError):
    """A started component did not become ready."""
