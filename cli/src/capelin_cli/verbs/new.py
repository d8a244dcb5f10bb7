"""The verbs that begin something: new extension, new provider."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from capelin_cli.verbs.options import group


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    new = group(app, "new", "Write an extension or a provider of your own.")
    new.command()(extension)
    new.command()(provider)


_Folder = Annotated[
    Path | None,
    typer.Option(help="Where to write it. Default: a folder of its name.", show_default=False),
]

_FindLinks = Annotated[
    str,
    typer.Option(help="A folder, or the URL of a page, with Capelin's wheels.", show_default=False),
]
_Index = Annotated[
    str, typer.Option(help="The URL of a package index that has Capelin.", show_default=False)
]


def extension(
    name: Annotated[
        str, typer.Argument(help="Its name, such as my-extension.", show_default=False)
    ],
    *,
    folder: _Folder = None,
    find_links: _FindLinks = "",
    index: _Index = "",
) -> None:
    """Write a Runtime Extension that works: handlers, tests, an image, manifests."""
    from capelin_cli.scaffold.writing import write_project

    where = folder or Path(name)
    written = write_project("extension", name, where, find_links=find_links, index=index)
    _report(written, where, "uv run pytest --record")


def provider(
    name: Annotated[str, typer.Argument(help="Its name, such as my-cloud.", show_default=False)],
    *,
    folder: _Folder = None,
    find_links: _FindLinks = "",
    index: _Index = "",
) -> None:
    """Write an infrastructure provider that works: kinds, reconcilers, a package, tests."""
    from capelin_cli.scaffold.writing import write_project

    where = folder or Path(name)
    written = write_project("provider", name, where, find_links=find_links, index=index)
    _report(written, where, "uv run pytest")


def _report(written: Sequence[Path], where: Path, command: str) -> None:
    for path in written:
        typer.echo(path)
    typer.echo(f"Next: cd {shlex.quote(str(where))} && {command}")
