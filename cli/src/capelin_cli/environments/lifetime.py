"""`capelin stop`, `restart` and `down`."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from capelin.errors import NotReadyError, WaitTimeoutError
from capelin_embedded.management import (
    ENVIRONMENT_LABEL,
    Environment,
    all_environments,
    current_status,
    existing_server_of,
    remove_environment,
    restart_process,
    stop_environment,
)
from capelin_embedded.processes import Phase
from capelin_machine_pool.containers.engine import PROVIDER_LABEL, EngineError
from rich.console import Console

from capelin_cli.environments.connection import find_environment, list_clusters, unusable_server
from capelin_cli.environments.containers import (
    engine_of,
    pause_containers,
    remove_containers,
)
from capelin_cli.environments.kind_target import kind_cluster_of, remove_kind_cluster
from capelin_cli.environments.kubeconfigs import remove_contexts
from capelin_cli.environments.logs import process_folder
from capelin_cli.terminal.checklist import Checklist

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
        if (engine := engine_of(environment)) is not None:
            with _engine_problems(checklist):
                await pause_containers(environment, engine)


async def restart(name: str, names: tuple[str, ...], namespace: str, *, within: float) -> None:
    """Have one process end, and wait until another one of its kind runs."""
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
                reason="Its supervisor keeps trying.",
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


async def take_down(name: str | None, agreed: Callable[[str], bool]) -> bool:
    """Remove one environment, or all of them. Returns whether all were removed."""
    console = Console()
    environments = all_environments() if name is None else [find_environment(name)]
    if not environments:
        console.print("No environment exists.")
    removed = True
    for environment in environments:
        kind = kind_cluster_of(environment)
        # A kind cluster that Capelin created for it goes with all its contents.
        obstacle = None if kind else await unusable_server(environment)
        if (question := await _question(environment, obstacle)) and not agreed(question):
            console.print(f"Environment {environment.name} stays.")
            removed = False
            continue
        found = existing_server_of(environment)
        with (
            environment.locked("down"),
            Checklist(console).shown() as checklist,
            checklist.step(f"environment {environment.name} removed"),
        ):
            for file in remove_contexts(environment):
                checklist.say(f"Removed its contexts from {file}.")
            if kind is not None:
                await remove_kind_cluster(kind)
            engine = engine_of(environment)
            await remove_environment(environment, there=obstacle is None and kind is None)
            if engine is not None:
                with _engine_problems(checklist):
                    await remove_containers(environment, engine)
        if obstacle is not None:
            label = ENVIRONMENT_LABEL if found is None else f"{ENVIRONMENT_LABEL}={found.mark}"
            text = f"Its objects in an existing API server stay there, labelled {label}."
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    return removed


@contextmanager
def _engine_problems(checklist: Checklist) -> Generator[None]:
    """Report containers that stay because the engine does not answer."""
    try:
        yield
    except EngineError as error:
        checklist.say(
            f"Machines in containers stay as they are: {error}. docker ps --all "
            f"--filter label={PROVIDER_LABEL} lists them."
        )


async def _question(environment: Environment, obstacle: str | None) -> str | None:
    """The question before the removal of an environment, if any."""
    if obstacle is not None:
        return (
            f"{obstacle} Remove the environment here, and leave its objects in an existing API "
            "server?"
        )
    clusters = await list_clusters(environment)
    names = ", ".join(cluster.name for cluster in clusters)
    if not clusters:
        return None
    return f"Environment {environment.name} has workload clusters: {names}. Remove them with it?"
