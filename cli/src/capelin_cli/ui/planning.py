"""Plans for the page: `capelin plan` as a process of its own, whose sandbox takes much memory."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from capelin.errors import NotReadyError, UserError
from capelin.programs import run_program

from capelin_cli.ui.observed import Key


@dataclass(frozen=True, slots=True)
class Planning:
    """Computes one plan at a time."""

    command: Sequence[str]
    """`capelin plan cluster` with the options that name the management cluster."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def plan(self, key: Key, version: str) -> bytes:
        """The JSON of the effect of another version.

        Raises:
            UserError: The plan is not possible, or another one is being computed.
        """
        if self._turn.locked():
            raise NotReadyError(
                "Another plan is being computed.", reason="Each needs a core and 800 MiB of memory."
            )
        namespace, name = key
        async with self._turn:
            options = (f"--namespace={namespace}", f"--version={version}", "--output=json")
            # This signal makes it remove its sandbox.
            ended = await run_program(*self.command, name, *options, ends_by=signal.SIGINT)
        if not ended.output:
            raise UserError(ended.errors)
        return ended.output


def planning(*options: str) -> Planning:
    """Plans about the management cluster that options name."""
    return Planning((sys.executable, "-m", "capelin_cli", "plan", "cluster", *options))
