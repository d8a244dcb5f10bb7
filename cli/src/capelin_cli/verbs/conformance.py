"""The verb that checks providers: conformance."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from capelin_cli.verbs.runner import run


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
    samples: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with an object of the kind, whose spec the checks use. With one of "
            "the provider's own cluster kind, machines are checked in such a cluster.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    manager: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Install the manifests, and run this manager during the checks. They also disturb "
            "it. {kubeconfig} is the path of its kubeconfig, which KUBECONFIG has, too. {instance} "
            "is 0, or 1 if it runs twice, for its ports. Without this option, the provider has to "
            "run in the environment.",
            show_default=False,
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment",
            "-e",
            help="The environment in which to check the behaviour. Without it, only manifests are "
            "checked.",
            show_default=False,
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(min=1, help="How long to wait for each change, in seconds.")
    ] = 60,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if a rule could not be tried.")
    ] = False,
    output: Annotated[
        Literal["text", "json", "junit", "markdown"],
        typer.Option("--output", "-o", help="The format of the report."),
    ] = "text",
) -> None:
    """Check a provider in any language against a contract of Cluster API.

    The manifests are always checked. With an environment, the behaviour is checked as well, on
    Clusters in namespaces of their own. The exit code is 1 if a rule does not hold, and with
    --strict also if a rule could not be tried. Advice does not count.
    """
    from capelin_cli.conformance import ConformanceRequest, check

    if (manifests is None) == (provider is None):
        raise typer.BadParameter("name --manifests or --provider, and not both")
    if manager is not None and (environment is None or manifests is None):
        raise typer.BadParameter("--manager needs --environment and --manifests")
    if samples is not None and environment is None:
        raise typer.BadParameter("--samples needs --environment")
    request = ConformanceRequest(
        contract=contract,
        manifests=manifests,
        provider=provider,
        kind=kind,
        samples=samples,
        manager=manager,
        environment=environment,
        patience=patience,
        strict=strict,
    )
    if not run(check(request, output)):
        raise typer.Exit(1)
