"""The verb that brings a cluster back when a majority of its etcd members is lost."""

from pathlib import Path
from typing import Annotated

import typer

from capelin_infra.cli.clusters import Name, add_cluster_verb
from capelin_infra.cli.options import Environment, Namespace, Within, Yes
from capelin_infra.cli.runner import confirm, run

_INTERRUPTED = "Nothing is deleted, and the same command goes on where it ended."


def register(app: typer.Typer) -> None:
    """Add this verb to the command."""
    add_cluster_verb(app, "recover", "Bring a cluster back from its only etcd member.", recover)


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
            help="An etcd member's data to go on from, where no member has any left.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    within: Within = 600,
) -> None:
    """Bring a cluster back when a majority of its etcd members is lost for good.

    Its etcd goes on from the one member that is left. Writes that only the lost members had are
    gone. It refuses where more can be saved, and sets data aside instead of deleting it.
    """
    from capelin_infra.clusters.cluster_verbs import ClusterName
    from capelin_infra.clusters.etcd_recovery import recover_cluster

    if not confirm(f"Give up the lost etcd members of cluster {name} for good?", yes=yes):
        raise typer.Exit(1)
    which = ClusterName(name, namespace, environment)
    run(recover_cluster(which, data, within), interrupted=_INTERRUPTED)
