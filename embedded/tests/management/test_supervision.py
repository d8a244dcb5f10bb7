"""A supervisor that fails."""

import errno

import pytest
from capelin_embedded.management.supervision import restart_on_failure


async def test_a_failed_supervisor_starts_again() -> None:
    runs: list[int] = []

    async def run() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise ExceptionGroup("tasks", [OSError(errno.ENOSPC, "no space left on device")])

    await restart_on_failure(run, pause=0)
    assert len(runs) == 3


async def test_the_failure_of_a_supervisor_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    failures = [OSError(errno.ENOSPC, "no space left on device")]

    async def run() -> None:
        if failures:
            raise failures.pop()

    await restart_on_failure(run, pause=0)
    assert "supervision failed" in caplog.text
    assert "no space left on device" in caplog.text


async def test_a_supervisor_that_never_began_fails() -> None:
    async def run() -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with pytest.raises(OSError, match="no space left"):
        await restart_on_failure(run, has_begun=lambda: False, pause=0)
