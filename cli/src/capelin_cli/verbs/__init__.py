"""The `capelin` command: its verbs, one module a group of them.

This package imports only what it needs to parse the command line. A verb imports the rest when it
runs, so that help and completion respond at once.
"""

from typing import Annotated

import typer

from capelin_cli.verbs import (
    bundles,
    clusters,
    conformance,
    environments,
    hooks,
    hosts,
    new,
    operations,
    plan,
    runner,
    system,
    ui,
)

app = typer.Typer(
    name="capelin",
    epilog=runner.EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verbs in (
    environments,
    clusters,
    plan,
    operations,
    hooks,
    hosts,
    ui,
    conformance,
    system,
    new,
    bundles,
):
    verbs.register(app)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        from capelin_embedded.binaries import CLUSTER_API, KNOWN_KUBERNETES

        typer.echo(
            f"{version('capelin')} (Cluster API {CLUSTER_API.versions[-1]}, "
            f"Kubernetes {KNOWN_KUBERNETES[0]} to {KNOWN_KUBERNETES[-1]})"
        )
        raise typer.Exit


@app.callback()
def options(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the whole trace of an error.")
    ] = False,
    version: Annotated[  # noqa: ARG001 - its callback has done it
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Cluster API on this machine: a whole management cluster in one command, no containers."""
    runner.show_traces(verbose)


def main() -> None:
    """Parse the command line, and run the verb."""
    runner.guard(lambda: app(prog_name="capelin"))
