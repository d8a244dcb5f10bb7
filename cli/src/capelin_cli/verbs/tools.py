"""The verbs that run other programs in an environment: kubectl and clusterctl."""

from typing import Annotated

import typer

from capelin_cli.verbs import completion
from capelin_cli.verbs.options import Environment
from capelin_cli.verbs.runner import run

# Everything after the program's own first word is the program's, whatever it looks like.
_PASS_ON = {"allow_interspersed_args": False, "ignore_unknown_options": True}

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        help="A workload cluster. Without it: the management cluster.",
        autocompletion=completion.clusters,
        show_default=False,
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS", help="The arguments of the program.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    settings = {**_PASS_ON, "help_option_names": ["--help"]}
    app.command(context_settings=settings)(kubectl)
    app.command(context_settings=settings)(clusterctl)


def kubectl(
    *,
    environment: Environment = "",
    cluster: Cluster = None,
    namespace: Annotated[
        str, typer.Option("--cluster-namespace", help="The namespace of the workload cluster.")
    ] = "default",
    arguments: Arguments = None,
) -> None:
    """Run kubectl in an environment, or in one of its clusters.

    For example: capelin kubectl get clusters -A, or capelin kubectl -c demo get nodes
    """
    from capelin_cli.environments.tools import prepare_tool, run_tool

    program, variables = run(prepare_tool("kubectl", environment, cluster, namespace))
    run_tool(program, arguments or [], variables)


def clusterctl(
    *,
    environment: Environment = "",
    arguments: Arguments = None,
) -> None:
    """Run clusterctl in an environment.

    For example: capelin clusterctl describe cluster demo
    """
    from capelin_cli.environments.tools import prepare_tool, run_tool

    program, variables = run(prepare_tool("clusterctl", environment, None, "default"))
    run_tool(program, arguments or [], variables)
