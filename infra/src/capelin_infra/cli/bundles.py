"""The verb for places without a network: mirror."""

from pathlib import Path
from typing import Annotated

import typer

from capelin_infra.cli.runner import run


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

    Credentials are those of docker login. Run it again after an interruption: what is there is not
    sent again.
    """
    try:
        from capelin_release.bundle import mirror as push
    except ModuleNotFoundError as error:
        from capelin.errors import InvalidInputError

        raise InvalidInputError(
            "capelin mirror needs the package capelin-release.",
            hint="Install it: pip install capelin-release",
        ) from error
    run(push(bundle, registry, typer.echo), interrupted="Go on with the same command.")
