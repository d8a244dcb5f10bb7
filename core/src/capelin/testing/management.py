"""One whole management cluster for all workers of a test run."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capelin.embedded.binaries import KNOWN_KUBERNETES, Binaries
from capelin.embedded.management import control
from capelin.embedded.management.components import programs
from capelin.embedded.management.environment import Environment
from capelin.embedded.management.providers import ON_REQUEST
from capelin.errors import BusyError

_SECONDS: Final = 240.0
_OTHER_RUN_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class ManagementCluster:
    """Cluster API's core, kubeadm and Dev providers, and those of all installed packages."""

    environment: Environment

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.environment.kubeconfig


async def started(folder: Path) -> ManagementCluster:
    """The management cluster in a folder, started if it does not run."""
    environment = Environment(folder)
    settings = control.wanted(
        environment,
        kubernetes_version=KNOWN_KUBERNETES[-1],
        providers=ON_REQUEST,
        durable=False,
    )
    if (said := control.status(environment)) is None or not said.is_up:
        await Binaries().fetch(programs(settings.kubernetes_version, settings.providers))
        async with asyncio.timeout(_OTHER_RUN_SECONDS):
            while True:
                try:
                    control.check_fixed_ports(environment, settings)
                    break
                except BusyError:
                    # Another test run has the Dev provider, of which a machine can have only one.
                    await asyncio.sleep(1)
        await control.start(environment, settings)
        async with asyncio.timeout(_SECONDS):
            async for _ in control.follow(environment):
                pass
    return ManagementCluster(environment)


def is_one(folder: Path) -> bool:
    """Whether a folder holds a management cluster."""
    return Environment(folder).exists


async def removed(folder: Path) -> None:
    """End a management cluster and remove its folder."""
    await control.remove(Environment(folder))
