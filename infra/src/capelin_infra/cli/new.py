"""The verbs that begin something: new extension, new provider."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from capelin_infra.cli.options import group


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    new = group(app, "new", "Write an extension or a provider of your own.")
    new.command()(extension)
    new.command()(provider)


_Folder = Annotated[
    Path | None,
    typer.Option(help="Where to write it. Default: a folder of its name.", show_default=False),
]


def extension(
    name: Annotated[
        str, typer.Argument(help="Its name, such as my-extension.", show_default=False)
    ],
    *,
    folder: _Folder = None,
) -> None:
    """Write a Runtime Extension that works: handlers, tests, an image, manifests."""
    where = _write("extension", name, folder)
    typer.echo(f"Continue with: cd {where} && uv run --extra test pytest --record")


def provider(
    name: Annotated[str, typer.Argument(help="Its name, such as my-cloud.", show_default=False)],
    *,
    folder: _Folder = None,
) -> None:
    """Write an infrastructure provider that works: kinds, reconcilers, a package, tests."""
    where = _write("provider", name, folder)
    typer.echo(f"Continue with: cd {where} && uv run --extra test pytest")


def _write(template: Literal["extension", "provider"], name: str, folder: Path | None) -> Path:
    from capelin_infra.scaffold.writing import write_project

    where = folder or Path(name)
    for path in write_project(template, name, where):
        typer.echo(path)
    return where
