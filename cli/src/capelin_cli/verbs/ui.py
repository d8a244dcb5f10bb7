"""The verb that serves the web page."""

from typing import Annotated

import typer

from capelin_cli.verbs.options import Environment, ManagementKubeconfig
from capelin_cli.verbs.runner import run


def register(app: typer.Typer) -> None:
    """Add this verb to the command."""
    app.command("ui")(ui)


def ui(
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Show only the clusters of this namespace. Default: all of them.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="The port on 127.0.0.1. Default: a free one.", show_default=False
        ),
    ] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Let the page request what these verbs do: upgrade, sleep, wake.",
        ),
    ] = False,
) -> None:
    """Show all clusters on a web page: live, and why each one waits.

    The page is for this machine only. It needs the link that the command prints, reads with your
    permissions, and changes nothing unless you allow actions. It works with every management
    cluster of Cluster API (--kubeconfig).
    """
    from capelin_cli.ui.command import UiOptions, run_ui

    options = UiOptions(
        environment=environment,
        kubeconfig=kubeconfig,
        namespace=namespace,
        port=port,
        open_browser=open_,
        allow_actions=allow_actions,
    )
    run(run_ui(options), interrupted="The page has ended.")
