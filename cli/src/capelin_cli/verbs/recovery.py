"""The verb that recovers a cluster after it has lost a majority of its etcd members."""

from pathlib import Path
from typing import Annotated

import typer

from capelin_cli.verbs.clusters import Name, add_cluster_verb
from capelin_cli.verbs.options import Environment, Namespace, Within, Yes
from capelin_cli.verbs.runner import confirm, run

_INTERRUPTED = "Nothing was deleted. Run the same command again to continue."


def register(app: typer.Typer) -> None:
    """Add this verb to the command."""
    add_cluster_verb(app, "recover", "Recover a cluster from its only etcd member.", recover)


def recover(
    name: Name,
    *,
    environment: Environment = "",
    namespace: Namespace = "default",
    data: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            resolve_path=True,
            help="Data of an etcd member to continue from, if no member has any left.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    within: Within = 600,
) -> None:
    """Recover a cluster that has lost a majority of its etcd members for good.

    Its etcd continues from the one remaining member. Writes that only the lost members had are
    lost. It refuses if it could save more, and sets data aside instead of deleting it.
    """
    from capelin_cli.clusters.cluster_verbs import ClusterName
    from capelin_cli.clusters.etcd_recovery import recover_cluster

    if not confirm(f"Give up the lost etcd members of cluster {name} for good?", yes=yes):
        raise typer.Exit(1)
    which = ClusterName(name, namespace, environment)
    run(recover_cluster(which, data, within), interrupted=_INTERRUPTED)
