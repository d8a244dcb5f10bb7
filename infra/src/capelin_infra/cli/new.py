"""The verbs that begin something: new extension."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    group = typer.Typer(
        help="Begin something of your own.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command()(extension)
    # A lone command would otherwise take the group's place.
    group.callback()(_nothing)
    app.add_typer(group, name="new")


def _nothing() -> None:
    pass


def extension(
    name: Annotated[
        str, typer.Argument(help="What it is called, as my-extension.", show_default=False)
    ],
    *,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where to write it; else a folder of its name.", show_default=False),
    ] = None,
) -> None:
    """Write a Runtime Extension that works: handlers, tests, an image, manifests."""
    from capelin_infra.scaffold.writing import write_extension

    where = folder or Path(name)
    for path in write_extension(name, where):
        typer.echo(path)
    typer.echo(f"Go on with: cd {where} && pip install -e '.[test]' && pytest --record")
