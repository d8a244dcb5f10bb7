"""The changes that a page can request: verbs of the command line, which do not wait here."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from capelin_cli.clusters.cluster_verbs import RunOptions, upgrade_cluster
from capelin_cli.clusters.operations import sleep_cluster, wake_cluster
from capelin_cli.environments.connection import ClusterName
from capelin_cli.ui.observed import Key
from capelin_cli.ui.server import Action


def actions(environment: str, kubeconfig: Path | None) -> Mapping[str, Action]:
    """The actions by name."""

    def action(verb: Callable[[ClusterName], Awaitable[None]]) -> Action:
        async def act(key: Key) -> None:
            await verb(ClusterName(key[1], key[0], environment, kubeconfig))

        return act

    return {
        "upgrade": action(lambda which: upgrade_cluster(which, None, RunOptions())),
        "sleep": action(lambda which: sleep_cluster(which, None)),
        "wake": action(lambda which: wake_cluster(which, None)),
    }
