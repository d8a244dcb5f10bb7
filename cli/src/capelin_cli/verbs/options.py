"""The options that several verbs have, each with one name and one meaning everywhere."""

from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from capelin_cli.verbs import completion

if TYPE_CHECKING:
    from capelin_cli.environments.connection import ClusterName


def _supervised_environment(ctx: typer.Context, name: str = "") -> str:
    """The chosen environment, whose supervisor runs if it should."""
    chosen = completion.chosen_environment(name)
    if not ctx.resilient_parsing:
        from capelin_cli.environments.connection import ensure_supervised

        ensure_supervised(chosen)
    return chosen


def _environment(text: str, callback: Callable[..., str] | None = None, **more: Any) -> Any:
    return typer.Option(
        "--environment",
        "-e",
        help=text,
        envvar="CAPELIN_ENVIRONMENT",
        callback=callback,
        autocompletion=completion.environments,
        **more,
    )


_CHOSEN: Final = "The environment. Without it: default, or the only one."

Environment = Annotated[str, _environment(_CHOSEN, _supervised_environment, show_default=False)]
IdleEnvironment = Annotated[
    str, _environment(_CHOSEN, completion.chosen_environment, show_default=False)
]
"""For verbs that start and stop the supervisor themselves."""
NamedEnvironment = Annotated[str, _environment("The environment.")]
"""For verbs that create or remove one: nothing is guessed."""
AnyEnvironment = Annotated[
    str | None, _environment("Show this environment only.", show_default=False)
]
Name = Annotated[
    str,
    typer.Argument(
        help="The cluster's name.", autocompletion=completion.clusters, show_default=False
    ),
]
ManagementKubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        exists=True,
        dir_okay=False,
        help="Kubeconfig of a management cluster that capelin up did not start, in place of an"
        " environment.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="The namespace of the workload cluster.")
]
AnyNamespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Show this namespace only.", show_default=False),
]
Output = Annotated[
    Literal["text", "wide", "json", "yaml"],
    typer.Option(
        "--output", "-o", help="text and wide are for people, json and yaml for programs."
    ),
]
Within = Annotated[float, typer.Option(min=1, help="How long to wait at most, in seconds.")]
WithinWithoutBuilds = Annotated[
    float,
    typer.Option(
        min=1,
        help="How long to wait at most, in seconds, for the environment and its clusters. The time "
        "to download or build programs does not count.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]


def group(app: typer.Typer, name: str, text: str, **settings: Any) -> typer.Typer:
    """A word that others follow, added to the command."""
    added = typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None, **settings)
    app.add_typer(added, name=name)
    return added


def given(make: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A verb with the arguments and options of `make`, which makes its first parameter of them."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        own = signature(make).parameters
        first, *others = signature(verb).parameters.values()
        parameters = sorted((*own.values(), *others), key=lambda parameter: parameter.kind)

        @wraps(verb)
        def called(**values: Any) -> None:
            made = make(**{name: values.pop(name) for name in own})
            verb(**{first.name: made}, **values)

        # Typer reads both.
        vars(called)["__signature__"] = Signature(parameters)
        called.__annotations__ = {entry.name: entry.annotation for entry in parameters}
        return called

    return decorate


def cluster_of(
    name: Name,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
) -> "ClusterName":
    """The cluster that a verb is for."""
    from capelin_cli.environments.connection import ClusterName

    return ClusterName(name, namespace, environment, kubeconfig)


def cluster_of_environment(
    name: Name, *, environment: Environment = "", namespace: Namespace = "default"
) -> "ClusterName":
    """The same for a verb that needs an environment of `capelin up`."""
    return cluster_of(name, environment=environment, namespace=namespace)
