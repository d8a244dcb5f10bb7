"""One management cluster for all workers of a test run, with the providers that tests name."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capelin.errors import BusyError

from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.file_locks import hold_lock
from capelin_embedded.management import (
    Environment,
    UpRequest,
    WaitUntilUp,
    carry_out,
    current_status,
    observe,
    plan_up,
    remove_environment,
)

_SECONDS: Final = 240.0
_BOOTSTRAP: Final = "kubeadm-bootstrap"
"""Clusters of our kinds need it, and it can run in any number of environments."""


@dataclass(frozen=True, slots=True)
class ManagementCluster:
    """Cluster API's core and kubeadm bootstrap provider, and those of all installed packages."""

    environment: Environment

    @property
    def kubeconfig(self) -> Path:
        return self.environment.kubeconfig

    async def require(self, *providers: str) -> None:
        """Add providers of Cluster API, by their names for `capelin up --with`.

        If another test run has a provider that can run only once, wait until that run ends.

        Raises:
            BusyError: An environment of this machine has such a provider.
        """
        async with hold_lock(self.environment.folder.parent / "start"):
            settings = self.environment.settings()
            if settings is None or not {*providers} <= {*settings.providers}:
                await _bring_up(self.environment, providers)


async def started(folder: Path) -> ManagementCluster:
    """The management cluster in a folder. Starts it if it does not run."""
    cluster = ManagementCluster(Environment(folder))
    async with hold_lock(folder.parent / "start"):
        status = current_status(cluster.environment)
        if status is None or not status.is_up:
            await _bring_up(cluster.environment)
    return cluster


async def _bring_up(environment: Environment, providers: tuple[str, ...] = ()) -> None:
    request = UpRequest(
        kubernetes_version=TESTED_KUBERNETES[-1],
        providers=(_BOOTSTRAP, *providers),
        durable=False,
    )
    while True:
        try:
            steps = plan_up(request, await observe(environment, request))
            break
        except BusyError:
            if not _another_run_has(providers, environment):
                raise
            await asyncio.sleep(1)
    await carry_out(environment, [step for step in steps if step != WaitUntilUp()])
    # Building binaries may take any time. The time limit starts after it.
    async with asyncio.timeout(_SECONDS):
        await carry_out(environment, [WaitUntilUp()])


def _another_run_has(providers: tuple[str, ...], environment: Environment) -> bool:
    """Whether another test run has some of the providers. It will end."""
    runs = (folder for folder in environment.folder.parents[1].iterdir() if folder.is_dir())
    others = (Environment(run / environment.folder.name) for run in runs)
    return any(
        settings is not None and not {*providers}.isdisjoint(settings.providers)
        for settings in (other.settings() for other in others if other != environment)
    )


def is_one(folder: Path) -> bool:
    return Environment(folder).exists


async def removed(folder: Path) -> None:
    await remove_environment(Environment(folder))
