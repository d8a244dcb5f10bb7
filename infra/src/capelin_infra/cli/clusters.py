"""The verbs of workload clusters: create, delete, upgrade, scale. Cluster API does all of it."""

from typing import Annotated

import typer

from capelin_infra.cli.runner import run

Name = Annotated[str, typer.Argument(help="The cluster's name.", show_default=False)]
Environment = Annotated[
    str,
    typer.Option("--environment", "-e", help="Where it is.", envvar="CAPELIN_ENVIRONMENT"),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the YAML that would be sent, and do nothing.")
]
Wait = Annotated[bool, typer.Option(help="Show the way there until it is done.")]
Within = Annotated[float, typer.Option(min=1, help="How many seconds to wait for it at most.")]

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
    name: Name,
    *,
    environment: Environment = "default",
    namespace: Namespace = "default",
    cluster_class: Annotated[str, typer.Option("--class", help="Its ClusterClass.")] = "capelin",
    kubernetes_version: Annotated[
        str | None,
        typer.Option(help="Such as v1.34.4; else the environment's.", show_default=False),
    ] = None,
    control_plane_replicas: Annotated[int, typer.Option(min=1, max=9)] = 1,
    workers: Annotated[int, typer.Option(min=0, max=10_000)] = 3,
    dry_run: DryRun = False,
    wait: Wait = True,
    within: Within = 600,
) -> None:
    """Create a workload cluster from a ClusterClass."""
    from capelin_infra.clusters import ClusterName, RunOptions, create_cluster
    from capelin_infra.topology import ClusterOptions

    options = ClusterOptions(
        cluster_class=cluster_class,
        version=kubernetes_version,
        control_plane_replicas=control_plane_replicas,
        workers=workers,
    )
    which = ClusterName(name, namespace, environment)
    how = RunOptions(dry_run, within if wait else None)
    run(create_cluster(which, options, how), interrupted=_GOES_ON)


def delete(
    name: Name,
    *,
    environment: Environment = "default",
    namespace: Namespace = "default",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    wait: Wait = True,
    within: Within = 600,
) -> None:
    """Delete a workload cluster with all its machines."""
    from capelin_infra.clusters import ClusterName, RunOptions, delete_cluster

    if not (yes or dry_run):
        typer.confirm(f"Delete cluster {name} with all its machines?", abort=True)
    which = ClusterName(name, namespace, environment)
    how = RunOptions(dry_run, within if wait else None)
    run(delete_cluster(which, how), interrupted=_GOES_ON)


def upgrade(
    name: Name,
    version: Annotated[
        str | None,
        typer.Argument(
            help="The version to go to, as v1.34.4 or 1.34; else the next minor.",
            show_default=False,
        ),
    ] = None,
    *,
    environment: Environment = "default",
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
    environment: Environment = "default",
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
