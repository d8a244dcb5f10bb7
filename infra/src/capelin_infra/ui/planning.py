"""Plans for the page: `capelin plan` as a process of its own, whose sandbox takes much memory."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from capelin.errors import NotReadyError, UserError

from capelin_infra.ui.observed import Key


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
            process = await asyncio.create_subprocess_exec(
                *(*self.command, name, f"--namespace={namespace}", f"--version={version}"),
                *("--output=json",),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                plan, problem = await process.communicate()
            finally:
                if process.returncode is None:
                    # It removes its sandbox.
                    process.send_signal(signal.SIGINT)
        if not plan:
            raise UserError(problem.decode(errors="replace").strip())
        return plan


def planning(*options: str) -> Planning:
    """Plans about the management cluster that options name."""
    return Planning((sys.executable, "-m", "capelin_infra", "plan", "cluster", *options))
