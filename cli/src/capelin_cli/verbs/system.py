"""The verbs of this machine: kubectl, clusterctl, doctor, the cache, the storage of kinds."""

from pathlib import Path
from typing import Annotated

import typer

from capelin_cli.verbs import completion
from capelin_cli.verbs.options import Environment, Output, Yes, group
from capelin_cli.verbs.runner import confirm, run

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
    app.command()(versions)
    app.command()(doctor)
    app.command()(migrate)
    cache = group(app, "cache", "List, fetch and remove the programs in the cache.")
    cache.command("ls")(list_cache)
    cache.command("prefetch")(prefetch)
    cache.command("prune")(prune)


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
    from capelin_cli.environments.kubeconfigs import prepare_tool, run_tool

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
    from capelin_cli.environments.kubeconfigs import prepare_tool, run_tool

    program, variables = run(prepare_tool("clusterctl", environment, None, "default"))
    run_tool(program, arguments or [], variables)


def doctor() -> None:
    """Check this machine for everything that environments need.

    The exit code is 0 if capelin up can work, and else 3.
    """
    from capelin_cli.environments.doctor import check_machine

    if not run(check_machine()):
        raise typer.Exit(3)


def versions(*, output: Output = "text") -> None:
    """List the versions of Kubernetes that clusters can have.

    It shows which of them are in the cache. Capelin fetches or builds the others on first use.
    """
    from capelin_cli.environments.program_cache import show_versions

    show_versions(output)


def migrate(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of CRDs, such as fishes.infrastructure.cluster.x-k8s.io. Default: list "
            "those whose objects are stored in several versions.",
            show_default=False,
        ),
    ] = None,
    *,
    environment: Environment = "",
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="The kubeconfig of another cluster.", show_default=False),
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="The context in that kubeconfig.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the objects, and change nothing.")
    ] = False,
) -> None:
    """Store all objects of kinds in their current version, so that an old version can go.

    It writes each object unchanged, and then removes the old versions from the status of the CRD.
    """
    from capelin_cli.environments.storage import migrate as migrate_kinds

    run(
        migrate_kinds(names or [], environment, kubeconfig, context, dry_run=dry_run),
        interrupted="Run the same command again to continue.",
    )


def list_cache(*, output: Output = "text") -> None:
    """List the programs, where each came from, and how much room they take."""
    from capelin_cli.environments.program_cache import show

    show(output)


def prefetch(
    programs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Such as kube-apiserver, kube-apiserver@v1.35.4, or v1.35 for all of that "
            "version. Default: all, in every tested version.",
            autocompletion=completion.programs,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Fetch or build programs now, so that later commands need not."""
    from capelin_cli.environments.program_cache import prefetch as fetch

    run(fetch(programs or []), interrupted="The cache keeps them. Continue with the same command.")


def prune(
    everything: Annotated[bool, typer.Option("--all", help="Remove all programs.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would go, and remove nothing.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Remove programs in versions that Capelin does not know any more, or all of them.

    It asks first: to fetch or build them again may take minutes.
    """
    from capelin_cli.environments.program_cache import prune as remove

    if not remove(
        everything=everything, dry_run=dry_run, agreed=lambda text: confirm(text, yes=yes)
    ):
        raise typer.Exit(1)
