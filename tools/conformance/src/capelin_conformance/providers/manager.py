"""The process of a checked manager, which checks can kill, restart and run twice."""

import asyncio
import os
import shlex
import signal
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self

from capelin.client import Config
from capelin.errors import InvalidInputError, NotReadyError
from capelin.programs import default_signals

from capelin_conformance.providers.gateway import Gateway

_STOP_SECONDS: Final = 10.0
_LOG_LINES: Final = 5


class ManagerProcess:
    """A manager that talks to the API server through a gateway.

    Its command has `{kubeconfig}` for the path of a kubeconfig, and `{instance}` for 0, or for 1 in
    a second process of it, so that their ports can differ.
    """

    def __init__(self, command: str, gateway: Gateway, folder: Path, instance: int = 0) -> None:
        self.gateway = gateway
        self._command = command
        self._folder = folder
        self._instance = instance
        self._log = folder / f"{instance}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._ended = asyncio.Event()
        self._waiting: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def run(cls, command: str, config: Config) -> AsyncGenerator[Self]:
        """Run a manager during a block.

        Raises:
            InvalidInputError: It cannot be started.
        """
        with tempfile.TemporaryDirectory(prefix="capelin-manager-") as name:
            folder = Path(name)
            async with Gateway.open(config) as gateway:
                kubeconfig = folder / "kubeconfig"
                kubeconfig.touch(mode=0o600)
                kubeconfig.write_bytes(gateway.kubeconfig)
                manager = cls(command, gateway, folder)
                async with manager.running():
                    yield manager

    @asynccontextmanager
    async def another(self) -> AsyncGenerator[Self]:
        """Run a second process of the manager during a block."""
        second = type(self)(self._command, self.gateway, self._folder, instance=1)
        async with second.running():
            yield second

    async def restart(self) -> None:
        """Kill the process, and start it again."""
        await self._stop(signal.SIGKILL)
        await self._start()

    async def wait(self) -> None:
        """Wait until the process has ended by itself."""
        await self._ended.wait()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._ended.is_set()

    def last_output(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return " / ".join(text.splitlines()[-_LOG_LINES:]) or "it wrote nothing"

    def error(self) -> NotReadyError:
        """The error after the process has ended by itself."""
        code = self._process.returncode if self._process else None
        return NotReadyError(
            f"The manager ended with exit code {code}.",
            reason=f"Its last output: {self.last_output()}.",
            hint="Run it by itself with the kubeconfig of the environment.",
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the process during a block."""
        await self._start()
        try:
            yield
        finally:
            await self._stop(signal.SIGTERM)

    async def _start(self) -> None:
        kubeconfig = str(self._folder / "kubeconfig")
        places = {"{kubeconfig}": kubeconfig, "{instance}": str(self._instance)}
        command = self._command
        try:
            words = shlex.split(command)
            for place, value in places.items():
                words = [word.replace(place, value) for word in words]
            with self._log.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *words,
                    env={**os.environ, "KUBECONFIG": kubeconfig},
                    stdout=log,
                    stderr=log,
                    # Commands such as `go run` start the manager as their child.
                    start_new_session=True,
                    preexec_fn=default_signals(),
                )
        except (OSError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"The manager {command!r} cannot be started.",
                reason=f"{error}.",
                hint="Give --manager a command that runs in this folder.",
            ) from None
        self._process = process
        task = asyncio.create_task(self._notice_end(process))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _notice_end(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        if process is self._process:
            self._ended.set()

    async def _stop(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # The group can have processes after the end of its first one.
        for chosen in (number, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, chosen)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _STOP_SECONDS)
