"""The options that several verbs have, each with one name and one meaning everywhere."""

from typing import Annotated, Literal

import typer

from capelin_infra.cli import completion


def _supervised_environment(ctx: typer.Context, name: str = "") -> str:
    """The chosen environment, whose supervisor runs if it should."""
    chosen = completion.chosen_environment(name)
    if not ctx.resilient_parsing:
        from capelin_infra.environments.connection import ensure_supervised

        ensure_supervised(chosen)
    return chosen


Environment = Annotated[
    str,
    typer.Option(
        "--environment",
        "-e",
        help="The environment. Without it: default, or the only one there is.",
        envvar="CAPELIN_ENVIRONMENT",
        callback=_supervised_environment,
        autocompletion=completion.environments,
        show_default=False,
    ),
]
IdleEnvironment = Annotated[
    str,
    typer.Option(
        "--environment",
        "-e",
        help="The environment. Without it: default, or the only one there is.",
        envvar="CAPELIN_ENVIRONMENT",
        callback=completion.chosen_environment,
        autocompletion=completion.environments,
        show_default=False,
    ),
]
"""For verbs that start and stop the supervisor themselves."""
NamedEnvironment = Annotated[
    str,
    typer.Option(
        "--environment",
        "-e",
        help="The environment.",
        envvar="CAPELIN_ENVIRONMENT",
        autocompletion=completion.environments,
    ),
]
"""For verbs that create or remove one: nothing is guessed."""
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="The namespace of the workload cluster.")
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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
