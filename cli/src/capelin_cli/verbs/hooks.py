"""The verbs of runtime extensions: ls, discover, call, bench, conformance."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capelin_cli.verbs.options import Environment, Output, Within, given, group
from capelin_cli.verbs.runner import run

if TYPE_CHECKING:
    from capelin_cli.hooks.targets import RequestOptions, Target

Extension = Annotated[
    str,
    typer.Argument(
        metavar="URL|EXTENSIONCONFIG",
        help="Where it is: https://HOST:PORT, a file with an ExtensionConfig, or the name of an "
        "ExtensionConfig in the environment.",
        show_default=False,
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca", help="PEM file with the CA to trust, for a URL. Default: the system's.", exists=True
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--client-cert", help="PEM file with the client certificate to present.", exists=True
    ),
]
Key = Annotated[
    Path | None, typer.Option("--client-key", help="PEM file with its key.", exists=True)
]
Through = Annotated[
    str | None,
    typer.Option(
        "--through",
        metavar="HOST:PORT",
        help="Connect to this address instead, such as a port of kubectl port-forward.",
    ),
]
Catalogs = Annotated[
    list[str],
    typer.Option(
        "--catalog",
        metavar="MODULE:NAME",
        help="A catalog with hooks that are not Cluster API's own. Can be repeated.",
        show_default=False,
    ),
]
Handler = Annotated[
    str,
    typer.Argument(
        metavar="HANDLER", help="Name of the handler, as `hooks ls` prints it.", show_default=False
    ),
]
Request = Annotated[
    Path | None,
    typer.Option(
        "--request", "-f", help="JSON or YAML file with the request, or - for standard input."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="[NAMESPACE/]NAME",
        help="The Cluster of the environment that the request is about. Default: a made-up one.",
    ),
]
Patch = Annotated[
    str | None,
    typer.Option(
        "--patch",
        metavar="NAME",
        help="For patches, with --cluster: the patch of its ClusterClass whose variables and "
        "settings to send, if several name the handler.",
    ),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="VERSION", help="For upgrades: the version to go to."),
]


def target_of(
    extension: Extension,
    *,
    environment: Environment = "",
    ca: Ca = None,
    client_cert: Certificate = None,
    client_key: Key = None,
    through: Through = None,
    catalog: Catalogs = [],  # noqa: B006 - typer makes a new one
) -> "Target":
    """The extension that a verb is for, and how to reach it."""
    from capelin_cli.hooks.targets import Target, known_hooks

    return Target(
        extension, environment, ca, client_cert, client_key, through, known_hooks(catalog)
    )


def request_of(
    *, request: Request = None, cluster: Cluster = None, to: To = None, patch: Patch = None
) -> "RequestOptions":
    """The source of the request that a verb sends."""
    from capelin_cli.hooks.targets import RequestOptions

    if request is not None and cluster is not None:
        raise typer.BadParameter("use --request or --cluster, not both")
    return RequestOptions(request, cluster, to, patch)


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    hooks = group(app, "hooks", "Look at runtime extensions, call and check them.")
    hooks.command("ls")(list_handlers)
    hooks.command("register")(register_extension)
    for verb in (unregister, certificate, discover, call, bench, conformance):
        hooks.command()(verb)


def list_handlers(*, environment: Environment = "", output: Output = "text") -> None:
    """List the ExtensionConfigs of an environment with their handlers."""
    from capelin_cli.hooks.verbs import ls

    run(ls(environment, output=output))


def register_extension(
    url: Annotated[
        str,
        typer.Argument(
            help="Where it answers, such as https://localhost:9443.", show_default=False
        ),
    ],
    *,
    name: Annotated[
        str, typer.Option(help="The name of its ExtensionConfig, which handlers' names end with.")
    ] = "local",
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            help="PEM file with the CA of its certificate. Default: the environment's, which "
            "capelin hooks certificate uses.",
            exists=True,
            show_default=False,
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--setting",
            metavar="NAME=VALUE",
            help="A setting that every call brings. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    environment: Environment = "",
    within: Within = 60,
) -> None:
    """Register an extension: Cluster API in the environment calls its hooks.

    The extension must be running: Cluster API discovers it at once. Cluster API calls its patches
    for the ClusterClasses that name them.
    """
    from capelin_cli.hooks.registration import Registration, register

    registration = Registration(name, url, environment, ca, tuple(setting or ()))
    run(register(registration, within=within))


def unregister(
    name: Annotated[
        str, typer.Argument(help="The name of its ExtensionConfig.", show_default=False)
    ],
    *,
    environment: Environment = "",
) -> None:
    """Unregister an extension: Cluster API no longer calls its hooks."""
    from capelin_cli.hooks.registration import unregister as remove

    run(remove(name, environment))


def certificate(
    folder: Annotated[Path, typer.Argument(help="Where to write it.", show_default=False)],
    *,
    environment: Environment = "",
) -> None:
    """Write a certificate for an extension on this machine, which the environment trusts.

    Start the extension with --cert-dir FOLDER --client-ca FOLDER/client-ca.crt, then register it.
    """
    from capelin_cli.hooks.registration import write_certificate

    for path in write_certificate(environment, folder):
        typer.echo(path)


@given(target_of)
def discover(target: "Target", *, output: Output = "text") -> None:
    """Ask an extension for its handlers, and check them as Cluster API does."""
    from capelin_cli.hooks.verbs import discover as run_discover

    run(run_discover(target, output=output))


@given(target_of)
@given(request_of)
def call(
    options: "RequestOptions",
    target: "Target",
    handler: Handler,
    *,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what patches would change instead of the response.")
    ] = False,
    show_request: Annotated[
        bool, typer.Option("--show-request", help="Print the request, and do not send it.")
    ] = False,
) -> None:
    """Call a handler, and print its response.

    The request comes from a file, from a Cluster of the environment, or from a sample Cluster.

    The exit code is 0 if the handler lets its caller proceed, 7 if it blocks its caller, and 1 if
    it fails or does not answer.
    """
    from capelin_cli.hooks.verbs import call as run_call

    blocked = run(run_call(target, handler, options, diff=diff, show_request=show_request))
    if blocked:
        raise typer.Exit(7)


@given(target_of)
@given(request_of)
def bench(
    options: "RequestOptions",
    target: "Target",
    handler: Handler,
    *,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long to call it.")] = 5,
    connections: Annotated[int, typer.Option(min=1, max=256, help="How many calls at once.")] = 4,
    output: Output = "text",
) -> None:
    """Call a handler again and again, and print how long the calls take."""
    from capelin_cli.hooks.verbs import bench as run_bench

    run(
        run_bench(
            target,
            handler,
            options,
            seconds=seconds,
            connections=connections,
            output=output,
        )
    )


@given(target_of)
def conformance(
    target: "Target",
    *,
    cluster: Cluster = None,
    to: To = None,
    pure_only: Annotated[
        bool,
        typer.Option(
            "--pure-only", help="Call only hooks that compute a response and do nothing else."
        ),
    ] = False,
    output: Output = "text",
) -> None:
    """Check an extension in any language against Cluster API's requirements.

    It calls every handler several times, for a Cluster conformance/example that does not exist
    (or the one that --cluster names). The exit code is 1 if a rule does not hold. Advice does not
    count.
    """
    from capelin_cli.hooks.targets import RequestOptions
    from capelin_cli.hooks.verbs import conformance as run_conformance

    options = RequestOptions(None, cluster, to)
    if not run(run_conformance(target, options, pure_only=pure_only, output=output)):
        raise typer.Exit(1)
