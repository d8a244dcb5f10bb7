"""How the user called the command, so that suggested commands work unchanged."""

import os
import re
from collections.abc import Mapping
from typing import Final

_VERBS: Final = (
    "cache|clusterctl|create|delete|dev|doctor|down|explain|hooks|kubeconfig|kubectl|logs|new|recover|"
    "restart|scale|start|status|stop|ui|up|upgrade|versions|wait"
)
_COMMAND: Final = re.compile(rf"(?<!run )(?<![\w./-])capelin (?=(?:{_VERBS})\b)")


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
