"""The verbs of workload clusters: create, delete, upgrade, wait, scale, explain."""

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from capelin_cli.verbs import completion
from capelin_cli.verbs.options import (
    Environment,
    Namespace,
    Output,
    Within,
    Yes,
    cluster_of,
    cluster_of_environment,
    given,
    group,
)
from capelin_cli.verbs.runner import confirm, run

if TYPE_CHECKING:
    from capelin_cli.environments.connection import ClusterName

NewName = Annotated[str, typer.Argument(help="The cluster's name.", show_default=False)]
Workers = Annotated[
    int | None, typer.Option(min=0, max=10_000, help="How many workers.", show_default=False)
]
Pool = Annotated[
    str | None,
    typer.Option(help="The pool to scale, where the cluster has several.", show_default=False),
]
ControlPlaneReplicas = Annotated[
    int | None,
    typer.Option(min=1, max=9, help="How many control plane replicas.", show_default=False),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the YAML that would be sent, and change nothing.")
]
Wait = Annotated[bool, typer.Option(help="Wait until it is done, and show the progress.")]


class ClusterVerb(TyperGroup):
    """A verb that `cluster` follows. If the word is missing, the error shows the right command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # The shell that completes a line wants no error.
        if args[0] not in self.commands and not ctx.resilient_parsing:
            from capelin.errors import InvalidInputError

            raise InvalidInputError(
                f"No such command: {self.name} {args[0]}.",
                reason="The word cluster comes before the name of one.",
                hint=f"Type capelin {self.name} cluster {shlex.join(args)}.",
            )
        return super().resolve_command(ctx, args)


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    for verb, help_text, function in (
        ("create", "Create a workload cluster.", create),
        ("delete", "Delete a workload cluster.", delete),
        ("upgrade", "Upgrade a workload cluster.", upgrade),
        ("wait", "Wait for a workload cluster.", wait_),
    ):
        add_cluster_verb(app, verb, help_text, function)
    # `scale` accepts too many words, and then names the right option in its error.
    app.command(context_settings={"allow_extra_args": True})(scale)
    add_cluster_verb(app, "explain", "Explain why a workload cluster waits.", explain)


def add_cluster_verb(
    app: typer.Typer, verb: str, text: str, function: Callable[..., None]
) -> typer.Typer:
    """Add a verb that `cluster` follows. Returns the group, for other words."""
    added = group(app, verb, text, cls=ClusterVerb)
    added.command("cluster")(function)
    # Typer would otherwise replace the group by its only command.
    added.callback()(lambda: None)
    return added


def create(
    name: NewName,
    *,
    environment: Environment = "",
    namespace: Namespace = "default",
    cluster_class: Annotated[str, typer.Option("--class", help="Its ClusterClass.")] = "capelin",
    kubernetes_version: Annotated[
        str | None,
        typer.Option(
            help="Such as v1.36.3, 1.36 or latest. Default: the environment's version.",
            autocompletion=completion.versions,
            show_default=False,
        ),
    ] = None,
    control_plane_replicas: Annotated[
        int, typer.Option(min=1, max=9, help="How many control plane replicas.")
    ] = 1,
    workers: Annotated[int, typer.Option(min=0, max=10_000, help="How many workers.")] = 3,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="The value of a variable of the class, such as machines.dies=20. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    within: Within = 600,
) -> None:
    """Create a workload cluster from a ClusterClass."""
    from capelin_cli.clusters.cluster_verbs import RunOptions, create_cluster
    from capelin_cli.clusters.topology import ClusterOptions, parse_variables
    from capelin_cli.environments.connection import ClusterName

    options = ClusterOptions(
        cluster_class=cluster_class,
        version=kubernetes_version,
        control_plane_replicas=control_plane_replicas,
        workers=workers,
        variables=parse_variables(set_ or []),
    )
    which = ClusterName(name, namespace, environment)
    how = RunOptions(dry_run, within if wait else None)
    run(create_cluster(which, options, how), interrupted=how.interrupted)


@given(cluster_of_environment)
def delete(
    which: "ClusterName",
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
    wait: Wait = True,
    within: Within = 600,
) -> None:
    """Delete a workload cluster with all its machines."""
    from capelin_cli.clusters.cluster_verbs import RunOptions, delete_cluster

    if not confirm(f"Delete cluster {which.name} with all its machines?", yes=yes or dry_run):
        raise typer.Exit(1)
    how = RunOptions(dry_run, within if wait else None)
    run(delete_cluster(which, how), interrupted=how.interrupted)


@given(cluster_of_environment)
def upgrade(
    which: "ClusterName",
    version: Annotated[
        str | None,
        typer.Argument(
            help="The version to go to, such as v1.36.3 or 1.36. Default: the next minor version.",
            autocompletion=completion.versions,
            show_default=False,
        ),
    ] = None,
    *,
    dry_run: DryRun = False,
    wait: Wait = True,
    within: Within = 1800,
) -> None:
    """Upgrade a workload cluster to the next minor version of Kubernetes, or to a later patch.

    If the upgrade has begun already, the command waits for it. If the cluster runs the version
    already, nothing is changed, and the exit code is 0.
    """
    from capelin_cli.clusters.cluster_verbs import RunOptions, upgrade_cluster

    how = RunOptions(dry_run, within if wait else None)
    run(upgrade_cluster(which, version, how), interrupted=how.interrupted)


@given(cluster_of_environment)
def wait_(
    which: "ClusterName",
    *,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Wait until the cluster is deleted.")
    ] = False,
    within: Within = 1800,
) -> None:
    """Wait until a workload cluster is ready, or deleted.

    A cluster is ready when it is Available, all of it runs its version, no hook blocks it, and all
    control plane replicas and workers are ready. After --within seconds the command ends with exit
    code 6, and Cluster API continues.

    For example: capelin wait cluster demo --within 900, or capelin wait cluster demo --deleted
    """
    from capelin_cli.clusters.cluster_verbs import RunOptions, wait_for_cluster

    how = RunOptions(within=within)
    run(wait_for_cluster(which, how, deleted=deleted), interrupted=how.interrupted)


@given(cluster_of_environment)
def scale(
    which: "ClusterName",
    ctx: typer.Context,
    *,
    workers: Workers = None,
    pool: Pool = None,
    control_plane_replicas: ControlPlaneReplicas = None,
    dry_run: DryRun = False,
    wait: Wait = True,
    within: Within = 600,
) -> None:
    """Change how many machines a cluster has."""
    from capelin_cli.clusters.cluster_verbs import RunOptions, scale_cluster
    from capelin_cli.clusters.topology import ScaleOptions

    if ctx.args:
        raise _too_many_words(which.name, ctx.args, workers)
    if workers is None and control_plane_replicas is None:
        raise typer.BadParameter("give --workers, --control-plane-replicas, or both")
    options = ScaleOptions(workers, pool, control_plane_replicas)
    how = RunOptions(dry_run, within if wait else None)
    run(scale_cluster(which, options, how), interrupted=how.interrupted)


def _too_many_words(name: str, more: list[str], workers: int | None) -> Exception:
    from capelin.errors import InvalidInputError

    if name == "cluster":
        name, *more = more
    number = workers if workers is not None else next(filter(str.isdecimal, more), "N")
    return InvalidInputError(
        "scale takes one word, the cluster's name.",
        reason="Numbers come with --workers or --control-plane-replicas.",
        hint=f"Type capelin scale {shlex.join([name])} --workers {number}.",
    )


@given(cluster_of)
def explain(
    which: "ClusterName",
    *,
    output: Output = "text",
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 unless the cluster is ready.")
    ] = False,
) -> None:
    """Explain why a workload cluster waits: from the cluster to the one object that causes it.

    Each cause has the person or program that can end the wait, the evidence, and the next command.
    The verb only reads. It works with every management cluster of Cluster API (--kubeconfig).
    """
    from capelin_cli.explain.command import explain_cluster

    is_ready = run(explain_cluster(which, output))
    if exit_code and not is_ready:
        raise typer.Exit(1)
