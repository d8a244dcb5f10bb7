"""Errors of calls, with messages that stay the same from call to call."""

from typing import Literal

FailureKind = Literal["unreachable", "untrusted", "timeout", "redirect", "status", "unreadable"]
"""Why a call brought no response, in the order in which a call can fail."""


class CallError(Exception):
    """Base of all errors of the client."""


class EndpointError(CallError):
    """The endpoint or the client certificate is unusable."""


class DiscoveryError(CallError):
    """Cluster API would reject the handlers: all of them if one is invalid."""

    def __init__(self, name: str, problems: list[str]) -> None:
        super().__init__(f"the handlers of {name} are invalid: {'; '.join(problems)}")
        self.problems = problems


class NoResponseError(CallError):
    """The call brought no response. The handler's failure policy decides the consequence."""

    def __init__(self, failure_kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.failure_kind: FailureKind = failure_kind


class RefusedError(CallError):
    """The handler responded without success. No failure policy ignores that."""

    def __init__(self, handler: str, status: str, message: str) -> None:
        how = "failed" if status == "Failure" else f"responded with the unknown status {status!r}"
        super().__init__(f"{handler} {how}: {message}" if message else f"{handler} {how}")
        self.status = status
        self.message = message
