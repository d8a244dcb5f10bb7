"""Brings a killed supervisor back before a command works on its environment."""

import asyncio
import sys

from capelin.embedded.management import all_environments, environment_named, revive_supervisor
from capelin.errors import InvalidInputError


def ensure_supervised(name: str | None) -> None:
    """Start killed supervisors again: of one environment, or of all; and report each."""
    try:
        environments = all_environments() if name is None else [environment_named(name)]
    except InvalidInputError:
        # The command refuses the name itself.
        return

    async def revive() -> list[bool]:
        return await asyncio.gather(*map(revive_supervisor, environments))

    for environment, revived in zip(environments, asyncio.run(revive()), strict=True):
        if revived:
            sys.stderr.write(
                f"The supervisor of environment {environment.name} was killed. It runs again.\n"
            )
