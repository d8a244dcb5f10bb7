"""Restarts a killed supervisor whose processes still run."""

import asyncio
from importlib.metadata import version
from typing import Final

from capelin.errors import BusyError, UserError

from capelin_embedded.management.environment import Environment
from capelin_embedded.management.status_file import SUPERVISOR, current_status, supervisor_process
from capelin_embedded.management.up_steps import start_supervisor
from capelin_embedded.processes import Process, recorded_names

_STATUS_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.05


async def revive_supervisor(environment: Environment) -> bool:
    """Restart the supervisor of an environment if it was killed. Returns whether it did.

    A supervisor that a user stopped stays stopped. So does one whose processes have also ended,
    for example after a reboot, and one of another version of Capelin: `up` changes versions.
    """
    if not was_killed(environment):
        return False
    try:
        with environment.locked("up"):
            settings = environment.settings()
            if settings is None or settings.capelin != version("capelin-core"):
                return False
            # Another command may have been faster.
            if not was_killed(environment):
                return False
            await start_supervisor(environment, settings)
            await _wait_for_status(environment)
            return True
    except (BusyError, UserError, OSError):
        # The user's command still does its own work, and `status` shows the rest.
        return False


def was_killed(environment: Environment) -> bool:
    """Whether the supervisor ended without being stopped, while some of its processes still run.

    Stopping a process removes its record, but killing it does not.
    """
    if SUPERVISOR not in recorded_names(environment.supervisor):
        return False
    return supervisor_process(environment) is None and any(
        Process.adopt(environment.processes, name) is not None
        for name in recorded_names(environment.processes)
    )


async def _wait_for_status(environment: Environment) -> None:
    """Wait until the new supervisor has written its first status, for the next command."""
    deadline = asyncio.get_running_loop().time() + _STATUS_SECONDS
    while current_status(environment) is None and supervisor_process(environment) is not None:
        if asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(_POLL_SECONDS)
