"""The verb that rotates the CAs and keys of a cluster."""

from typing import Annotated

import typer

from capelin_cli.verbs.clusters import Name, add_cluster_verb
from capelin_cli.verbs.options import Environment, ManagementKubeconfig, Namespace, Within, Yes
from capelin_cli.verbs.runner import confirm, run


def register(app: typer.Typer) -> None:
    """Add this verb to the command."""
    add_cluster_verb(app, "rotate", "Rotate a cluster's CAs and its service account key.", rotate)


def rotate(
    name: Name,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    drop: Annotated[
        bool,
        typer.Option("--drop", help="Also drop the old CAs and keys, when no client needs them."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --drop: drop them even if clients need them.")
    ] = False,
    yes: Yes = False,
    within: Within = 600,
) -> None:
    """Rotate the CAs and the service account key of a cluster, or continue a rotation.

    Requests continue, and machines stay. The old CAs and keys stay trusted until you drop them.
    The command prints the clients that need them.
    """
    from capelin.errors import InvalidInputError

    from capelin_cli.clusters.cluster_verbs import ClusterName
    from capelin_cli.clusters.rotation import Drop, rotate_cluster

    which = ClusterName(name, namespace, environment, kubeconfig)
    if force and not drop:
        raise InvalidInputError(
            "--force needs --drop.",
            reason="Only the end of a rotation waits for clients.",
            hint=f"Type {which.command('rotate', '--drop', '--force')}.",
        )
    effect = "Copies of its kubeconfig from before the rotation become invalid"
    if force:
        effect = "Nodes, pods and people that still need them lose access"
    question = f"Drop the old CAs and keys of cluster {name}? {effect}."
    if drop and not confirm(question, yes=yes):
        raise typer.Exit(1)
    run(
        rotate_cluster(which, Drop(force) if drop else None, within),
        interrupted="The provider continues: see capelin status.",
    )
