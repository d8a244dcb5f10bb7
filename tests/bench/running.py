"""A management cluster for measurements, and the usage of its processes."""

import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from capelin.client import Client, Config
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import (
    Environment,
    UpRequest,
    bring_up,
    environment_named,
    remove_environment,
)
from capelin_embedded.processes import Process

from tests.support.kernel import memory


@dataclass(frozen=True, slots=True)
class Bench:
    """A management cluster with Capelin's providers, and a client of it."""

    environment: Environment
    client: Client

    def pid(self, process: str) -> int:
        found = Process.adopt(self.environment.processes, process)
        assert found is not None
        return found.pid


@asynccontextmanager
async def management(
    home: str,
    providers: Iterable[str] = (),
    *,
    durable: bool = True,
    backup_folder: Path | None = None,
) -> AsyncGenerator[Bench]:
    """A management cluster for one benchmark, which is removed afterwards."""
    environment = environment_named("bench", {**os.environ, "XDG_STATE_HOME": home})
    request = UpRequest(
        kubernetes_version=TESTED_KUBERNETES[-1],
        providers=(*providers,),
        durable=durable,
        backup_folder=backup_folder,
    )
    try:
        await bring_up(environment, request)
        async with Client(Config.from_kubeconfig(environment.kubeconfig)) as client:
            yield Bench(environment, client)
    finally:
        await remove_environment(environment)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_memory(pid: int) -> float:
    """The resident memory of a process in MiB."""
    return memory(pid) / 2**20


def proportional_memory(pid: int) -> float:
    """The memory of a process in MiB, with its share of shared memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(pid)
