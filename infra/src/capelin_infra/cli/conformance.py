"""The verb that checks providers: conformance."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def register(app: typer.Typer) -> None:
    """Add this verb to the command."""
    app.command("conformance")(check_provider)


def check_provider(
    contract: Annotated[
        Literal[
            "control-plane",
            "infra-cluster",
            "infra-machine",
            "machine-pool",
            "bootstrap",
            "clusterctl",
        ],
        typer.Argument(help="The contract of Cluster API.", show_default=False),
    ],
    *,
    manifests: Annotated[
        Path | None,
        typer.Option(
            help="The provider's components: a YAML file, or a folder with them and metadata.yaml.",
            exists=True,
            show_default=False,
        ),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="The provider of an installed package, by its name or label.", show_default=False
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="The kind to check. Default: the only one whose name ends as the contract's do.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Literal["text", "json", "junit", "markdown"],
        typer.Option("--output", "-o", help="The format of the report."),
    ] = "text",
) -> None:
    """Check the manifests of a provider in any language against a contract of Cluster API.

    The exit code is 1 if a rule does not hold. Advice does not count.
    """
    from capelin_infra.conformance import check

    if (manifests is None) == (provider is None):
        raise typer.BadParameter("name --manifests or --provider, and not both")
    if not check(contract, manifests, provider, kind, output):
        raise typer.Exit(1)
