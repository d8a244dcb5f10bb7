"""What people are told when something does not work: what, why, and what to do."""


class ProblemError(Exception):
    """Something that the user can understand and act on."""

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what} {why} {remedy}")
        self.what = what
        self.why = why
        self.remedy = remedy
