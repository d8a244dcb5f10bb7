"""Separate home folders for environments of the command."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from capelin_embedded.management import Environment, UpRequest, bring_up, remove_environment
from capelin_embedded.processes import Process


@asynccontextmanager
async def management_environment(
    folder: Path, version: str, providers: Sequence[str]
) -> AsyncGenerator[Environment]:
    """A management cluster in a new environment, without durable data."""
    environment = Environment(folder / "core")
    try:
        request = UpRequest(kubernetes_version=version, providers=tuple(providers), durable=False)
        await bring_up(environment, request)
        yield environment
    finally:
        await remove_environment(environment)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Home:
    """A separate home folder for environments."""

    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        # Hints show the invocation, and uv may run the tests.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("UV_")}
        return {**inherited, "XDG_STATE_HOME": str(self.folder), "COLUMNS": "200"}

    def environment(self, name: str = "default") -> Environment:
        return Environment(self.folder / "capelin" / name)

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "capelin_cli",
            *arguments,
            env=self.variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Background processes of a shell without job control ignore it.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    async def capelin(self, *arguments: str) -> Ended:
        process = await self.start(*arguments)
        out, err = await process.communicate()
        return Ended(process.returncode or 0, out.decode(), err.decode())

    async def up(self, name: str = "default") -> None:
        ended = await self.capelin("up", "--management-only", "-e", name)
        assert ended.code == 0, ended.err


def processes(environment: Environment) -> dict[str, int]:
    """Processes of an environment by name."""
    folders = (environment.supervisor, environment.processes)
    names = [path.stem for folder in folders for path in folder.glob("*.process")]
    found = [Process.adopt(folder, name) for name in names for folder in folders]
    return {process.name: process.pid for process in found if process is not None}
