"""What a handler can say in one line: go on, come back later, or no."""

from dataclasses import dataclass

from capelin.runtime.messages import Response, is_whole


@dataclass(frozen=True, slots=True)
class Proceed:
    """The caller goes on."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class Retry:
    """The caller is held back and asks again."""

    after_seconds: int
    message: str

    def __post_init__(self) -> None:
        # Go reads nothing else as an int32, and what it cannot read is no answer at all.
        if not is_whole(self.after_seconds):
            raise TypeError(
                f"cannot ask again after {self.after_seconds!r} seconds: say a whole number"
            )
        if not 0 < self.after_seconds < 2**31:
            raise ValueError(
                f"cannot ask again after {self.after_seconds} seconds: say at least 1,"
                " or proceed() to let the caller go on"
            )


class Failure(Exception):  # noqa: N818 - it is the status that the caller sees
    """The handler could not do its work, or says no. To return or to raise.

    The caller shows the message in conditions and asks again at its own pace, so it must not hold
    a secret, nor anything that changes by itself.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        # Not always a text: often it is the error that the author caught.
        self.message = str(message)


Verdict = Proceed | Retry | Failure
"""What most handlers answer."""

Answer = Verdict | Response | None
"""All that a handler can answer; `None` is to proceed."""


def proceed(message: str = "") -> Proceed:
    """Let the caller go on."""
    return Proceed(message)


def retry_after(seconds: int, message: str) -> Retry:
    """Hold the caller back, and have it ask again. Only hooks that block can.

    The caller may ask earlier. It shows the message, which must not change by itself.
    """
    return Retry(seconds, message)
