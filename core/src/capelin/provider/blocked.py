"""The one way to say that a reconcile cannot go on now."""


class Blocked(Exception):  # noqa: N818 - a state of the object, not a fault of the program
    """Raised by a provider that cannot go on now; the frame makes a condition of it and retries.

    Args:
        reason: The condition's reason, in CamelCase.
        message: What is missing or wrong. The same situation gives the same message: no times,
            ids or counters, or the condition changes with every reconcile.
        hint: What a person can do about it.
    """

    def __init__(self, reason: str, message: str, hint: str = "") -> None:
        super().__init__(reason, message, hint)
        self.reason = reason
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message
