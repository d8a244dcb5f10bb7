"""Errors that a person can understand and act on: what happened, why, and what to do about it."""

from typing import ClassVar


class UserError(Exception):
    """An error for people. The command prints it without a trace and ends with its exit code."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, reason: str = "", hint: str = "") -> None:
        super().__init__(" ".join(filter(None, (message, reason, hint))))
        self.message = message
        self.reason = reason
        self.hint = hint


class InvalidInputError(UserError):
    """What was asked for is not possible."""

    exit_code = 2


class UnfitMachineError(UserError):
    """This machine lacks something."""

    exit_code = 3


class MissingError(UserError):
    """There is no such environment, cluster or process."""

    exit_code = 4


class BusyError(UserError):
    """Another process is changing the same thing."""

    exit_code = 5


class WaitTimeoutError(UserError):
    """Waiting took longer than it was allowed to."""

    exit_code = 6


class NotReadyError(UserError):
    """What was started did not become ready."""
