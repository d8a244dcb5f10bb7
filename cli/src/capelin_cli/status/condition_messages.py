"""Messages of conditions, shortened to the one line that people read."""

import re
from typing import Final

from capelin_lifecycle.api import LIFECYCLE_HOOKS

_BLOCKED: Final = re.compile(r"Following hooks are blocking [^:]+: (?P<responses>.+)", re.DOTALL)
_NEXT_BULLET: Final = re.compile(r"\n[ \t]*\* ")
# Cluster API joins the responses of hooks with semicolons, which a response may also contain.
_NEXT_HOOK: Final = re.compile(rf"(?:^|; )({'|'.join(LIFECYCLE_HOOKS)})(?:: |(?=; )|$)")
_UPGRADE: Final = re.compile(r"Cluster is upgrading to (?P<version>\S+)")
_LAST_HOOK: Final = "AfterClusterUpgrade"
"""Cluster API calls it when the control plane and all workers run the new version."""


def one_line(message: str) -> str:
    """A message of Cluster API with its bullets joined by semicolons."""
    parts = [" ".join(part.split()) for part in re.split(r"(?:^|\n)\s*\* ", message)]
    text = ""
    for part in filter(None, parts):
        separator = "" if not text else " " if text.endswith(":") else "; "
        text += separator + part
    return text


def blocking_hooks(message: str) -> dict[str, str]:
    """The hooks that a message of `TopologyReconciled` calls blocking, with their responses."""
    blocked = _BLOCKED.search(message)
    if blocked is None:
        return {}
    responses = _NEXT_BULLET.split(blocked["responses"])[0]
    _, *parts = _NEXT_HOOK.split(responses)
    by_hook = dict(zip(parts[::2], map(one_line, parts[1::2]), strict=True))
    # Cluster API lists them in random order.
    return {hook: by_hook[hook] for hook in LIFECYCLE_HOOKS if hook in by_hook}


def is_upgrading(message: str) -> bool:
    """Whether a message of `TopologyReconciled` is about an upgrade."""
    return _UPGRADE.match(message) is not None


def topology_summary(message: str, hooks: str = "") -> str:
    """A message of `TopologyReconciled` without the responses of the hooks that block.

    `hooks` is the text about these hooks. Without it, the summary has their names only.
    """
    names = list(blocking_hooks(message))
    if not names:
        return one_line(message)
    hooks = hooks or " and ".join(names)
    upgrade = _UPGRADE.match(message)
    if upgrade is None:
        work = "deletion" if message.startswith("Cluster is deleting") else "creation"
        return f"{work} waits for {hooks}"
    if names == [_LAST_HOOK]:
        return f"runs {upgrade['version']}, waits for {hooks}"
    return f"upgrade to {upgrade['version']} waits for {hooks}"
