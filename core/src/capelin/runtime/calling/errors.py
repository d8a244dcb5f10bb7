"""How a call can end other than well, in words that stay the same from call to call."""

from typing import Literal

Trouble = Literal["unreachable", "untrusted", "timeout", "redirect", "status", "unreadable"]
"""What kind of no answer it is, in the order in which a call gets there."""


class CallingError(Exception):
    """Anything that the calling side raises."""


class AddressError(CallingError):
    """An ExtensionConfig that leads nowhere."""


class UnknownHandlerError(CallingError):
    """A handler that nobody has registered, or that is for another hook."""


class NotMeantError(CallingError):
    """A handler that is not for this namespace."""


class NoHandlerError(CallingError):
    """Nobody to ask, for a hook whose answers have to say something."""


class NoMergeRuleError(CallingError):
    """A hook whose answers say more than when to ask again, and nobody knows how to join them."""


class TooManyHandlersError(CallingError):
    """Several handlers for a hook that takes the answer of one."""


class DiscoveryError(CallingError):
    """An extension whose handlers cannot be taken; one bad handler spoils them all."""

    def __init__(self, name: str, problems: list[str]) -> None:
        super().__init__(f"the handlers of {name} cannot be taken: {'; '.join(problems)}")
        self.problems = problems


class NoAnswerError(CallingError):
    """The call brought no answer. The handler's failure policy says what becomes of that."""

    def __init__(self, trouble: Trouble, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.trouble: Trouble = trouble
        self.reached = reached
        """Whether there was a connection: without one, all other handlers have the same trouble."""


class RefusedError(CallingError):
    """The handler answered, and not with success. No failure policy ignores that."""

    def __init__(self, handler: str, status: str, message: str) -> None:
        how = "says no" if status == "Failure" else f"answered with the unknown status {status!r}"
        super().__init__(f"{handler} {how}: {message}" if message else f"{handler} {how}")
        self.status = status
        self.message = message
