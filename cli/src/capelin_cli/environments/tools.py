"""`capelin kubectl` and `capelin clusterctl`: the programs of the cache, in an environment."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from capelin.errors import NotReadyError
from capelin_embedded.binaries import DEFAULT_KUBERNETES, Binaries

from capelin_cli.environments.connection import find_environment
from capelin_cli.environments.kubeconfigs import kubeconfig_of

Tool = Literal["kubectl", "clusterctl"]


async def prepare_tool(
    tool: Tool, environment: str, cluster: str | None, namespace: str
) -> tuple[Path, dict[str, str]]:
    """A program, and the variables that lead it to the environment or to one of its clusters."""
    found = find_environment(environment)
    settings = found.settings()
    if settings is None:
        raise NotReadyError(
            f"Environment {environment} was never started.",
            reason="Its version of Kubernetes is unknown.",
            hint=f"Start it with capelin up -e {environment}.",
        )
    kubeconfigs = [await kubeconfig_of(environment, None, namespace)]
    if cluster is not None:
        kubeconfigs.insert(0, await kubeconfig_of(environment, cluster, namespace))
    else:
        # So that --context capelin-ENV-CLUSTER works for the clusters that were used before.
        kubeconfigs += sorted((found.folder / "kubeconfigs").glob("*.*"))
    version = settings.kubernetes_version or DEFAULT_KUBERNETES
    program = await Binaries().path(tool, version if tool == "kubectl" else None)
    variables = {"KUBECONFIG": os.pathsep.join(map(str, kubeconfigs))}
    if tool == "clusterctl":
        # Its version belongs to this Cluster API: it must not go online to look for a newer one.
        variables["CLUSTERCTL_DISABLE_VERSIONCHECK"] = "true"
    return program, variables


def run_tool(program: Path, arguments: Sequence[str], variables: dict[str, str]) -> None:
    """Become the program: its terminal, its signals and its exit code are the user's."""
    os.execve(program, [program.name, *arguments], {**os.environ, **variables})  # noqa: S606
