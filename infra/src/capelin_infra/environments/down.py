"""`capelin down`."""

from collections.abc import Callable

from capelin.embedded.management import (
    ENVIRONMENT_LABEL,
    Environment,
    all_environments,
    existing_server_of,
    remove_environment,
)
from rich.console import Console

from capelin_infra.environments.connection import find_environment, list_clusters, unusable_server
from capelin_infra.environments.kind_target import kind_cluster_of, remove_kind_cluster
from capelin_infra.environments.user_kubeconfig import remove_contexts
from capelin_infra.terminal.checklist import Checklist


async def take_down(name: str | None, agreed: Callable[[str], bool]) -> bool:
    """Remove one environment, or all of them; returns whether nothing of that stays.

    Raises:
        MissingError: if there is no such environment.
    """
    console = Console()
    environments = all_environments() if name is None else [find_environment(name)]
    if not environments:
        console.print("There is no environment.")
    removed = True
    for environment in environments:
        kind = kind_cluster_of(environment)
        # A kind cluster that was made for it goes with all that is in it.
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
                checklist.say(f"Its contexts were taken out of {file}.")
            if kind is not None:
                await remove_kind_cluster(kind)
            await remove_environment(environment, there=obstacle is None and kind is None)
        if obstacle is not None:
            label = ENVIRONMENT_LABEL if found is None else f"{ENVIRONMENT_LABEL}={found.mark}"
            text = f"Whatever was put into an existing API server stays there, labelled {label}."
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    return removed


async def _question(environment: Environment, obstacle: str | None) -> str | None:
    """What to ask before an environment is removed, if anything."""
    if obstacle is not None:
        return (
            f"{obstacle} Remove the environment here, and leave in an existing API server "
            "whatever was put into it?"
        )
    clusters = await list_clusters(environment)
    names = ", ".join(cluster.name for cluster in clusters)
    if not clusters:
        return None
    return f"Environment {environment.name} has workload clusters: {names}. Remove them with it?"
