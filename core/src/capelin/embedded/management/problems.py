"""What people are told when something does not work: what, why, and what to do."""


class ProblemError(Exception):
    """Something that the user can understand and act on."""

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what} {why} {remedy}")
        self.what = what
        self.why = why
        self.remedy = remedy


class BadInputError(ProblemError):
    """What was asked for cannot be."""


class BusyError(ProblemError):
    """Another process is changing the same thing."""


class MissingError(ProblemError):
    """There is no such environment or cluster."""


class NotUpError(ProblemError):
    """What was started did not come up."""


class TooSlowError(ProblemError):
    """What was waited for did not happen in time."""


class UnfitMachineError(ProblemError):
    """This machine lacks something."""
