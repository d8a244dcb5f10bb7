"""`capelin stop`, `start` and `restart`: what runs, without what is kept."""

import asyncio
from typing import Final

from capelin.api.capi import Cluster
from capelin.client import Client
from capelin.embedded.management import (
    Environment,
    UpRequest,
    current_status,
    restart_process,
    stop_environment,
)
from capelin.embedded.processes import Phase
from capelin.errors import NotReadyError, WaitTimeoutError
from rich.console import Console

from capelin_infra.clusters.up import bring_up_environment
from capelin_infra.environments.connection import client_of, find_environment
from capelin_infra.environments.kind_target import in_kind_cluster, kind_cluster_of
from capelin_infra.environments.logs import process_folder
from capelin_infra.terminal.checklist import Checklist
from capelin_infra.terminal.waiting import Deadline, wait_until_ready

_LOOK_SECONDS: Final = 0.1


async def stop(name: str) -> None:
    """End everything that runs of an environment, its clusters included, and keep the data."""
    environment = find_environment(name)
    with (
        environment.locked("stop"),
        Checklist(Console()).shown() as checklist,
        checklist.step(f"environment {name} stopped"),
    ):
        await stop_environment(environment)


async def start(name: str, *, within: float) -> None:
    """Start an environment that was stopped, and wait until its clusters are as they were."""
    environment = find_environment(name)
    if environment.settings() is None:
        raise NotReadyError(
            f"Environment {name} was never brought up.",
            reason="There is nothing to start.",
            hint=f"Begin with capelin up -e {name}.",
        )
    deadline = Deadline(within)
    with environment.locked("start"), Checklist(Console()).shown() as checklist:
        if kind_cluster_of(environment) is None:
            await bring_up_environment(environment, UpRequest(), checklist, deadline)
        else:
            async with in_kind_cluster(
                environment, UpRequest(), None, checklist, deadline
            ) as request:
                await bring_up_environment(environment, request, checklist, deadline)
        async with client_of(environment) as client:
            clusters = (await client.list(Cluster)).items
            await asyncio.gather(
                *(_ready(client, cluster, checklist, deadline) for cluster in clusters)
            )


async def _ready(
    client: Client, cluster: Cluster, checklist: Checklist, deadline: Deadline
) -> None:
    with checklist.step(f"cluster {cluster.name}") as line:
        await wait_until_ready(
            client,
            cluster.name,
            cluster.namespace or "default",
            deadline.left,
            lambda reason: checklist.update(line, reason),
        )
        line.detail = ""


async def restart(name: str, names: tuple[str, ...], namespace: str, *, within: float) -> None:
    """Have one process end, and wait until another one of its kind runs.

    Raises:
        MissingError: if there is no such process.
        NotReadyError: if it does not run.
    """
    environment = find_environment(name)
    folder, component = process_folder(environment, names, namespace)
    title = " ".join((*names, "restarted"))
    with Checklist(Console()).shown() as checklist, checklist.step(title):
        try:
            async with asyncio.timeout(within):
                if not await restart_process(folder, component):
                    raise NotReadyError(
                        f"{component} does not run.",
                        reason=f"Environment {name} may have been stopped.",
                        hint=f"Start it with capelin start -e {name}.",
                    )
                if len(names) == 1:
                    await _running(environment, component)
        except TimeoutError:
            raise WaitTimeoutError(
                f"{component} does not run again after {within:.0f} s.",
                reason="Its supervisor goes on trying.",
                hint=f"See why: capelin logs -e {name} {' '.join(names)}.",
            ) from None


async def _running(environment: Environment, component: str) -> None:
    while True:
        status = current_status(environment)
        processes = [] if status is None else status.processes
        if any(
            process.name == component and process.phase is Phase.RUNNING for process in processes
        ):
            return
        await asyncio.sleep(_LOOK_SECONDS)
