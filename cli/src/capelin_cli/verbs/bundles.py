"""The verb for places without a network: mirror."""

from pathlib import Path
from typing import Annotated

import typer

from capelin_cli.verbs.runner import run


def register(app: typer.Typer) -> None:
    """Add this verb to the command."""
    app.command()(mirror)


def mirror(
    bundle: Annotated[
        Path,
        typer.Argument(
            help="The bundle of a release, such as capelin-v0.2.0-bundle.tar.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ],
    registry: Annotated[
        str,
        typer.Argument(help="Where to, such as registry.example.com/capelin.", show_default=False),
    ],
) -> None:
    """Push the images, charts and components of a bundle into a registry.

    crane does it: from PATH, from the cache, or built with Go. Credentials are those of docker
    login. Run it again after an interruption: blobs that the registry has are not sent again.
    """
    from capelin_cli.mirror import mirror as push

    run(push(bundle, registry, typer.echo), interrupted="Continue with the same command.")
