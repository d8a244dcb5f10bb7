"""Results of a handler in one line: proceed, retry later, or fail."""

from capelin.runtime.messages import Response, RetryResponse, is_whole


class Failure(Exception):  # noqa: N818 - it is the status that the caller sees
    """Fails the call with a message for people. Raise it, or return it.

    The caller shows the message in conditions and calls again at its own pace. So it must contain
    neither secrets nor changing values.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        # Not always a string: often it is the error that the author caught.
        self.message = str(message)


HandlerResult = Response | Failure | None
"""All results of a handler. `None` means to proceed."""


def proceed(message: str = "") -> Response:
    """Let the caller proceed."""
    return Response(status="Success", message=message)


def retry_after(seconds: int, message: str) -> RetryResponse:
    """Make the caller wait and call again. Only blocking hooks allow it.

    The caller may call earlier. It shows the message, which must not change by itself.

    Raises:
        TypeError: The seconds are not a whole number.
        ValueError: They are less than 1, or more than Go's `int32` allows.
    """
    # Go rejects any other number for an int32, and with it the whole response.
    if not is_whole(seconds):
        raise TypeError(f"cannot retry after {seconds!r} seconds: use a whole number")
    if not 0 < seconds < 2**31:
        raise ValueError(
            f"cannot retry after {seconds} seconds: use at least 1,"
            " or proceed() to let the caller proceed"
        )
    return RetryResponse(status="Success", message=message, retry_after_seconds=seconds)
