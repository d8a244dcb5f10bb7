"""How the user called the command, so that what they are told to type next works as it stands."""

import os
import re
from collections.abc import Mapping
from typing import Final

_VERBS: Final = (
    "cache|clusterctl|create|delete|dev|doctor|down|hooks|kubeconfig|kubectl|logs|new|recover|"
    "restart|scale|start|status|stop|up|upgrade|versions|wait"
)
_COMMAND: Final = re.compile(rf"(?<!run )(?<![\w./-])capelin (?=(?:{_VERBS})\b)")


def command_name(variables: Mapping[str, str] = os.environ) -> str:
    """How the user calls the command: alone, or by way of uv."""
    return "uv run capelin" if "UV_RUN_RECURSION_DEPTH" in variables else "capelin"


def environment_option(name: str, variables: Mapping[str, str] = os.environ) -> str:
    """The option that has another command work on the same environment, where it needs one."""
    if name == "default" == (variables.get("CAPELIN_ENVIRONMENT") or "default"):
        return ""
    return f" -e {name}"


def as_invoked(text: str, variables: Mapping[str, str] = os.environ) -> str:
    """A text whose commands are written as the user calls them."""
    return _COMMAND.sub(f"{command_name(variables)} ", text)
