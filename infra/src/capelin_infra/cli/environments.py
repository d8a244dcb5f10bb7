"""The verbs of environments: up, status, kubeconfig, logs, down."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from capelin_infra.cli.runner import run

Name = Annotated[
    str,
    typer.Option("--environment", "-e", help="Which environment.", envvar="CAPELIN_ENVIRONMENT"),
]


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    for verb in (up, status, kubeconfig, logs, down):
        app.command()(verb)


def up(
    *,
    name: Name = "default",
    kubernetes_version: Annotated[
        str | None,
        typer.Option(
            help="The Kubernetes version of the clusters, such as v1.34.4; else the newest known. "
            "An existing API server keeps its own.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, max=1000, help="Workers of a new demo cluster; else 3.", show_default=False
        ),
    ] = None,
    control_plane_replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=9,
            help="Control plane replicas of a new demo cluster; else 1.",
            show_default=False,
        ),
    ] = None,
    management_only: Annotated[
        bool, typer.Option("--management-only", help="Make no demo cluster.")
    ] = False,
    with_: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="NAMES",
            help="More of Cluster API's own providers, separated by commas: "
            "kubeadm-bootstrap, kubeadm, dev.",
            show_default=False,
        ),
    ] = "",
    target: Annotated[
        Literal["process", "existing"] | None,
        typer.Option(
            help="Where the management cluster's API server is: started here as a process, as long "
            "as nothing is said, or there already, such as kind's.",
            show_default=False,
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            help="A kubeconfig that leads to the existing API server; else the one that the "
            "environment has, or else what kubectl would take.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(help="The context in it; else its current one.", show_default=False),
    ] = None,
) -> None:
    """Bring up everything, with a demo cluster.

    A management cluster and, in it, a workload cluster that is Available with Ready nodes.

    Safe to run again: what is there is kept, what is missing or was killed is started. Where the
    target is existing, no API server is started; all else runs on this machine just the same.
    """
    from capelin.embedded.management import UpRequest

    from capelin_infra.demo import DemoOptions
    from capelin_infra.up import UpOptions, bring_up

    request = UpRequest(
        kubernetes_version=kubernetes_version,
        providers=tuple(part.strip() for part in with_.split(",") if part.strip()),
        target=target,
        kubeconfig=kubeconfig,
        context=context,
    )
    demo = None if management_only else DemoOptions(workers, control_plane_replicas)
    run(
        bring_up(UpOptions(name, request, demo)),
        interrupted=f"Go on with capelin up -e {name}, or remove it with capelin down -e {name}.",
    )


def status(
    *,
    name: Annotated[
        str | None,
        typer.Option(
            "--environment",
            "-e",
            help="One environment; else all of them.",
            envvar="CAPELIN_ENVIRONMENT",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Literal["text", "json"], typer.Option("--output", "-o", help="For people or for programs.")
    ] = "text",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it until Ctrl-C.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with 1 unless all is as it should be.")
    ] = False,
) -> None:
    """Show environments and their clusters.

    Each process, and each cluster as a tree of objects with what they wait for.
    """
    from capelin_infra.status import show

    if watch and output == "json":
        raise typer.BadParameter("--watch is for people; programs ask again")
    good = run(show(name, json=output == "json", watch=watch))
    if exit_code and not good:
        raise typer.Exit(1)


def kubeconfig(
    cluster: Annotated[
        str | None,
        typer.Argument(help="A workload cluster; else the management cluster.", show_default=False),
    ] = None,
    *,
    name: Name = "default",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="The namespace of the workload cluster.")
    ] = ("default"),
    raw: Annotated[bool, typer.Option("--raw", help="Print the content, not the path.")] = False,
) -> None:
    """Print the path of a kubeconfig.

    As in export KUBECONFIG=$(capelin kubeconfig).
    """
    from capelin_infra.kubeconfigs import kubeconfig_of

    path = run(kubeconfig_of(name, cluster, namespace))
    typer.echo(path.read_text() if raw else str(path), nl=not raw)


def logs(
    component: Annotated[
        str | None,
        typer.Argument(help="As capelin status names it; else all of them.", show_default=False),
    ] = None,
    *,
    name: Name = "default",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option(min=0, help="How many of the last lines to show.")] = 20,
) -> None:
    """Print what an environment's processes said."""
    from capelin_infra.logs import print_logs

    run(print_logs(name, component, lines=lines, follow=follow))


def down(
    *,
    name: Name = "default",
    everything: Annotated[bool, typer.Option("--all", help="Every environment.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Stop an environment and remove all of it.

    Its workload clusters and all data are removed with it. An API server that was there before
    stays, without what was put into it.
    """
    from capelin_infra.down import take_down

    def agreed(question: str) -> bool:
        return yes or typer.confirm(question)

    run(
        take_down(None if everything else name, agreed),
        interrupted="What is left is removed by capelin down.",
    )
