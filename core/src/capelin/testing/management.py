"""One whole management cluster for all workers of a test run."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capelin.embedded.binaries import TESTED_KUBERNETES
from capelin.embedded.management import (
    OPTIONAL_PROVIDERS,
    Environment,
    UpRequest,
    WaitUntilUp,
    carry_out,
    current_status,
    observe,
    plan_up,
    remove_environment,
)
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
    request = UpRequest(
        kubernetes_version=TESTED_KUBERNETES[-1], providers=(*OPTIONAL_PROVIDERS,), durable=False
    )
    if (status := current_status(environment)) is None or not status.is_up:
        async with asyncio.timeout(_OTHER_RUN_SECONDS):
            while True:
                try:
                    steps = plan_up(request, await observe(environment, request))
                    break
                except BusyError:
                    # Another test run has the Dev provider, of which a machine can have only one.
                    await asyncio.sleep(1)
        await carry_out(environment, [step for step in steps if step != WaitUntilUp()])
        async with asyncio.timeout(_SECONDS):
            await carry_out(environment, [WaitUntilUp()])
    return ManagementCluster(environment)


def is_one(folder: Path) -> bool:
    """Whether a folder holds a management cluster."""
    return Environment(folder).exists


async def removed(folder: Path) -> None:
    """End a management cluster and remove its folder."""
    await remove_environment(Environment(folder))
