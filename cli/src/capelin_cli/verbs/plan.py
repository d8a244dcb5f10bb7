"""The verb that shows the effect of a change in advance."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from capelin_cli.verbs.clusters import ClusterVerb, ControlPlaneReplicas, Pool, Workers
from capelin_cli.verbs.options import Environment, ManagementKubeconfig, Name, Namespace
from capelin_cli.verbs.runner import run

if TYPE_CHECKING:
    from capelin_cli.plan.command import PlanOptions

REPLACES_MACHINES: Final = 2
"""The exit code of a plan that replaces machines."""

PlanFormat = Literal["text", "markdown", "json", "yaml"]
Output = Annotated[
    PlanFormat,
    typer.Option("--output", "-o", help="text, markdown for pull requests, or json and yaml."),
]
Within = Annotated[
    float,
    typer.Option(min=1, help="How long Cluster API may work on the change, in seconds."),
]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch", "-w", help="Plan again after each change of a file or an object, until Ctrl-C."
    ),
]
Guard = Annotated[
    bool,
    typer.Option(
        "--guard",
        help="Approve the plan: policies with approvedPlan hold a change with another effect.",
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--filename",
        "-f",
        exists=True,
        dir_okay=False,
        help="A file with changed or new objects, in the form of kubectl apply. Can be repeated.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add this verb to the command."""
    added = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, cls=ClusterVerb, invoke_without_command=True
    )
    added.callback()(plan)
    app.add_typer(added, name="plan")
    added.command("cluster")(cluster)


def plan(
    ctx: typer.Context,
    *,
    filename: Files = None,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    output: Output = "text",
    within: Within = 300,
    watch: Watch = False,
    guard: Guard = False,
) -> None:
    """Show in advance the effect of a change on clusters and machines.

    The verb copies the objects of the clusters into a throw-away API server with Cluster API's
    core, makes the change there, and compares. It writes nothing to the management cluster. The
    exit code is 2 if machines are replaced.

    For example: capelin plan -f class.yaml, or capelin plan cluster demo --version v1.36.3
    """
    if ctx.invoked_subcommand is not None:
        return
    if not filename:
        raise typer.BadParameter(
            "give a file with -f, or name a cluster: capelin plan cluster NAME"
        )
    from capelin_cli.plan.command import PlanTarget, plan_files

    options = _options(output, within, watch=watch, guard=guard)
    target = PlanTarget(namespace, environment, kubeconfig)
    _finish(run(plan_files(target, filename, options)))


def cluster(
    name: Name,
    *,
    version: Annotated[
        str | None, typer.Option(help="The new version of Kubernetes.", show_default=False)
    ] = None,
    workers: Workers = None,
    pool: Pool = None,
    control_plane_replicas: ControlPlaneReplicas = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="The new value of a variable of the class. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    output: Output = "text",
    within: Within = 300,
    watch: Watch = False,
    guard: Guard = False,
) -> None:
    """Show the effect of a new version, other numbers or other variables of a cluster.

    The exit code is 2 if machines are replaced. Without --guard, nothing is written to the
    management cluster.
    """
    from capelin_cli.clusters.topology import ScaleOptions, parse_variables
    from capelin_cli.plan.command import ClusterChange, PlanTarget, plan_cluster

    options = _options(output, within, watch=watch, guard=guard)
    variables = parse_variables(set_ or [])
    numbers = (workers, control_plane_replicas)
    if version is None and not variables and numbers == (None, None):
        raise typer.BadParameter(
            "give --version, --workers, --control-plane-replicas or --set, or use -f FILE"
        )
    scale = None if numbers == (None, None) else ScaleOptions(workers, pool, control_plane_replicas)
    change = ClusterChange(name, version, scale, variables)
    target = PlanTarget(namespace, environment, kubeconfig)
    _finish(run(plan_cluster(target, change, options)))


def _options(output: PlanFormat, within: float, *, watch: bool, guard: bool) -> "PlanOptions":
    from capelin_cli.plan.command import PlanOptions

    if watch and output in {"json", "yaml"}:
        raise typer.BadParameter("--watch does not work with -o json or -o yaml")
    if watch and guard:
        raise typer.BadParameter("--watch does not work with --guard: approve one plan")
    return PlanOptions(output, within, watch, guard)


def _finish(found: Any) -> None:
    if found.replaces_machines:
        raise typer.Exit(REPLACES_MACHINES)
