"""The verb that prepares the move of a cluster to another management cluster."""

from typing import Annotated

import typer

from capelin_cli.verbs.clusters import Name, add_cluster_verb
from capelin_cli.verbs.options import Environment, ManagementKubeconfig, Namespace, Within
from capelin_cli.verbs.runner import run


def register(app: typer.Typer) -> None:
    """Add this verb to the command."""
    add_cluster_verb(app, "move", "Check whether a cluster can move, and request it.", move)


def move(
    name: Name,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    check: Annotated[
        bool, typer.Option("--check", help="Only check, and withdraw an earlier request.")
    ] = False,
    within: Within = 60,
) -> None:
    """Check whether a control plane on pods can move, and request the move for an hour.

    Then run clusterctl move. Without a request, it waits and fails.
    """
    from capelin_cli.clusters.cluster_verbs import ClusterName
    from capelin_cli.clusters.moves import move_cluster

    which = ClusterName(name, namespace, environment, kubeconfig)
    run(
        move_cluster(which, within, check_only=check),
        interrupted="The request is withdrawn.",
    )
