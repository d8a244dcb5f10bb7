"""The verbs of workload clusters: create, delete, upgrade, scale. Cluster API does all of it."""

from typing import Annotated

import typer

from capelin_infra.cli import completion
from capelin_infra.cli.options import Environment, Namespace, Within, Yes
from capelin_infra.cli.runner import confirm, run

NewName = Annotated[str, typer.Argument(help="The cluster's name.", show_default=False)]
Name = Annotated[
    str,
    typer.Argument(
        help="The cluster's name.", autocompletion=completion.clusters, show_default=False
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the YAML that would be sent, and do nothing.")
]
Wait = Annotated[bool, typer.Option(help="Show the way there until it is done.")]
_GOES_ON = "Cluster API goes on with it: see capelin status."


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    for verb, help_text, function in (
        ("create", "Create a workload cluster.", create),
        ("delete", "Delete a workload cluster.", delete),
        ("upgrade", "Upgrade a workload cluster.", upgrade),
    ):
        group = typer.Typer(help=help_text, no_args_is_help=True, rich_markup_mode=None)
        group.command("cluster")(function)
        # A lone command would otherwise take the group's place.
        group.callback()(_nothing)
        app.add_typer(group, name=verb)
    app.command()(scale)


def _nothing() -> None:
    pass


def create(
    name: NewName,
    *,
    environment: Environment = "",
    namespace: Namespace = "default",
    cluster_class: Annotated[str, typer.Option("--class", help="Its ClusterClass.")] = "capelin",
    kubernetes_version: Annotated[
        str | None,
        typer.Option(
            help="As v1.34.4, 1.34 or latest; else the environment's.",
            autocompletion=completion.versions,
            show_default=False,
        ),
    ] = None,
    control_plane_replicas: Annotated[int, typer.Option(min=1, max=9)] = 1,
    workers: Annotated[int, typer.Option(min=0, max=10_000)] = 3,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="The value of a variable of the class, as machines.dies=20; can be said several "
            "times.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    within: Within = 600,
) -> None:
    """Create a workload cluster from a ClusterClass."""
    from capelin_infra.clusters import ClusterName, RunOptions, create_cluster
    from capelin_infra.topology import ClusterOptions, parse_variables

    options = ClusterOptions(
        cluster_class=cluster_class,
        version=kubernetes_version,
        control_plane_replicas=control_plane_replicas,
        workers=workers,
        variables=parse_variables(set_ or []),
    )
    which = ClusterName(name, namespace, environment)
    how = RunOptions(dry_run, within if wait else None)
    run(create_cluster(which, options, how), interrupted=_GOES_ON)


def delete(
    name: Name,
    *,
    environment: Environment = "",
    namespace: Namespace = "default",
    yes: Yes = False,
    dry_run: DryRun = False,
    wait: Wait = True,
    within: Within = 600,
) -> None:
    """Delete a workload cluster with all its machines."""
    from capelin_infra.clusters import ClusterName, RunOptions, delete_cluster

    if not confirm(f"Delete cluster {name} with all its machines?", yes=yes or dry_run):
        raise typer.Exit(1)
    which = ClusterName(name, namespace, environment)
    how = RunOptions(dry_run, within if wait else None)
    run(delete_cluster(which, how), interrupted=_GOES_ON)


def upgrade(
    name: Name,
    version: Annotated[
        str | None,
        typer.Argument(
            help="The version to go to, as v1.34.4 or 1.34; else the next minor.",
            autocompletion=completion.versions,
            show_default=False,
        ),
    ] = None,
    *,
    environment: Environment = "",
    namespace: Namespace = "default",
    dry_run: DryRun = False,
    wait: Wait = True,
    within: Within = 1800,
) -> None:
    """Upgrade a workload cluster to the next minor version of Kubernetes, or to a later patch."""
    from capelin_infra.clusters import ClusterName, RunOptions, upgrade_cluster

    which = ClusterName(name, namespace, environment)
    how = RunOptions(dry_run, within if wait else None)
    run(upgrade_cluster(which, version, how), interrupted=_GOES_ON)


def scale(
    name: Name,
    *,
    environment: Environment = "",
    namespace: Namespace = "default",
    workers: Annotated[
        int | None, typer.Option(min=0, max=10_000, help="How many workers.", show_default=False)
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(help="Of which pool, where the cluster has several.", show_default=False),
    ] = None,
    control_plane_replicas: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="How many control plane replicas.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    within: Within = 600,
) -> None:
    """Change how many machines a cluster has."""
    from capelin_infra.clusters import ClusterName, RunOptions, scale_cluster
    from capelin_infra.topology import ScaleOptions

    if workers is None and control_plane_replicas is None:
        raise typer.BadParameter("give --workers, --control-plane-replicas, or both")
    which = ClusterName(name, namespace, environment)
    options = ScaleOptions(workers, pool, control_plane_replicas)
    how = RunOptions(dry_run, within if wait else None)
    run(scale_cluster(which, options, how), interrupted=_GOES_ON)
