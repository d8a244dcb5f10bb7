"""Text for people: what tenants wrote shown as it is, and commands as the user calls them."""

import os
import re
from collections.abc import Mapping
from typing import Final

_VERBS: Final = (
    "cache|clusterctl|create|delete|dev|doctor|down|explain|hooks|kubeconfig|kubectl|logs|new|recover|"
    "restart|scale|start|status|stop|ui|up|upgrade|versions|wait"
)
_COMMAND: Final = re.compile(rf"(?<!run )(?<![\w./-])capelin (?=(?:{_VERBS})\b)")


def printable(text: str) -> str:
    r"""Text with escapes such as `\x1b` in place of what terminals do not show but obey.

    Any user can write messages of conditions: they must neither color the screen, nor move its
    cursor, nor look like something else.
    """
    return "".join(
        character if character.isprintable() or character == "\n" else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    return " " if character == "\t" else character.encode("unicode_escape").decode()


def command_name(variables: Mapping[str, str] = os.environ) -> str:
    """The user's name of the command: `capelin`, or `uv run capelin`."""
    return "uv run capelin" if "UV_RUN_RECURSION_DEPTH" in variables else "capelin"


def environment_option(name: str, variables: Mapping[str, str] = os.environ) -> str:
    """The option that lets another command work on the same environment, if it needs one."""
    if name == "default" == (variables.get("CAPELIN_ENVIRONMENT") or "default"):
        return ""
    return f" -e {name}"


def as_invoked(text: str, variables: Mapping[str, str] = os.environ) -> str:
    """A text with its commands in the form that the user calls them."""
    return _COMMAND.sub(f"{command_name(variables)} ", text)
