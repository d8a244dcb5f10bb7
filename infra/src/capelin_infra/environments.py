"""`capelin down` and `capelin kubeconfig`."""

from collections.abc import Callable
from pathlib import Path

from capelin.api.core import Secret
from capelin.embedded.management import (
    ENVIRONMENT_LABEL,
    Environment,
    all_environments,
    existing_server_of,
    remove_environment,
)
from capelin.embedded.processes import private_folder, write_private
from capelin.errors import MissingError
from rich.console import Console

from capelin_infra.connection import client_of, clusters_of, obstacle_of, the_environment
from capelin_infra.lifecycle import the_cluster
from capelin_infra.progress import Checklist


async def take_down(name: str | None, agreed: Callable[[str], bool]) -> None:
    """Remove one environment, or all of them.

    Raises:
        MissingError: if there is no such environment.
    """
    console = Console()
    environments = all_environments() if name is None else [the_environment(name)]
    if not environments:
        console.print("There is no environment.")
    for environment in environments:
        obstacle = await obstacle_of(environment)
        if (question := await _question(environment, obstacle)) and not agreed(question):
            console.print(f"Environment {environment.name} stays.")
            continue
        found = existing_server_of(environment)
        with (
            environment.locked("down"),
            Checklist(console).shown() as checklist,
            checklist.step(f"environment {environment.name} removed"),
        ):
            await remove_environment(environment, there=obstacle is None)
        if obstacle is not None:
            label = ENVIRONMENT_LABEL if found is None else f"{ENVIRONMENT_LABEL}={found.mark}"
            text = f"Whatever was put into an existing API server stays there, labelled {label}."
            console.print(text, highlight=False, markup=False, soft_wrap=True)


async def _question(environment: Environment, obstacle: str | None) -> str | None:
    """What to ask before an environment is removed, if anything."""
    if obstacle is not None:
        return (
            f"{obstacle} Remove the environment here, and leave in an existing API server "
            "whatever was put into it?"
        )
    clusters = await clusters_of(environment)
    names = ", ".join(cluster.name for cluster in clusters)
    if not clusters:
        return None
    return f"Environment {environment.name} has workload clusters: {names}. Remove them with it?"


async def kubeconfig_of(name: str, cluster: str | None, namespace: str) -> Path:
    """The file of a kubeconfig: the environment's own, or a workload cluster's.

    Raises:
        MissingError: if there is no such environment or cluster, or it has no kubeconfig yet.
    """
    environment = the_environment(name)
    if cluster is None:
        return environment.kubeconfig
    async with client_of(environment) as client:
        secret = await client.find(Secret, f"{cluster}-kubeconfig", namespace)
        if secret is None:
            await the_cluster(client, cluster, namespace)
            raise MissingError(
                f"Cluster {cluster} has no kubeconfig yet.",
                reason="Its control plane makes it when it is initialized.",
                hint="Wait for it: capelin status --watch.",
            )
    folder = private_folder(environment.folder / "kubeconfigs")
    path = folder / f"{namespace}.{cluster}"
    write_private(path, secret.data["value"])
    return path
