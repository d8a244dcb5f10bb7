"""The options that several verbs have, each with one name and one meaning everywhere."""

from typing import Annotated, Literal

import typer

Output = Annotated[
    Literal["text", "wide", "json", "yaml"],
    typer.Option("--output", "-o", help="For people, with more columns, or for programs."),
]
