"""Messages of conditions in the one line that people read, and why hooks wait."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from capelin.api.capi import Cluster
from capelin.contract import find_condition
from capelin_lifecycle.api import LIFECYCLE_HOOKS, LifecycleResult, ResultSpec, ResultStatus

_BLOCKED: Final = re.compile(r"Following hooks are blocking [^:]+: (?P<responses>.+)", re.DOTALL)
_NEXT_BULLET: Final = re.compile(r"\n[ \t]*\* ")
# Cluster API joins the responses of hooks with semicolons, which a response may also contain.
_NEXT_HOOK: Final = re.compile(rf"(?:^|; )({'|'.join(LIFECYCLE_HOOKS)})(?:: |(?=; )|$)")
_UPGRADE: Final = re.compile(r"Cluster is upgrading to (?P<version>\S+)")
_LAST_HOOK: Final = "AfterClusterUpgrade"
"""Cluster API calls it when the control plane and all workers run the new version."""
DELETION_HOOK = "BeforeClusterDelete"


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


@dataclass(frozen=True, slots=True)
class HookReason:
    """Why a hook waits."""

    hook: str
    message: str
    policy: str = ""
    """The policy of the lifecycle extension. Empty for another extension."""
    version: str = ""
    """The version that the upgrade goes to."""
    since: datetime | None = None
    failed: bool = False
    blocks: bool = True
    """Whether Cluster API waits for it. A failed policy may be ignored."""

    @property
    def text(self) -> str:
        """The reason with the policy's name."""
        if not self.policy:
            return self.message
        return f"policy {self.policy}{' has failed' if self.failed else ''}: {self.message}"


def hook_reasons(cluster: Cluster, results: Iterable[LifecycleResult]) -> list[HookReason]:
    """Why the hooks of a Cluster wait: unfinished results, and responses of other extensions."""
    responses = blocking_responses(cluster)
    reasons = [
        _reason(result.spec, result.status, responses.get(result.spec.hook, ""))
        for result in results
        if (result.namespace, result.spec.cluster.name) == (cluster.namespace, cluster.name)
        and result.is_about(cluster.uid)
        and result.status is not None
        and result.status.phase != "Done"
    ]
    others = [
        HookReason(hook, other)
        for hook, response in responses.items()
        if (other := _other_extensions(response, [each for each in reasons if each.hook == hook]))
    ]
    return [*reasons, *others]


def blocking_responses(cluster: Cluster) -> dict[str, str]:
    """The hooks that block a Cluster now, with the responses that Cluster API got."""
    condition = find_condition(cluster.status.conditions, "TopologyReconciled")
    if condition is None or condition.status == "True":
        return {}
    return blocking_hooks(condition.message)


def hooks_text(hooks: Iterable[str], reasons: Sequence[HookReason]) -> str:
    """The hooks, each with the reasons why it blocks."""
    parts: list[str] = []
    for hook in hooks:
        texts = [reason.text for reason in reasons if reason.hook == hook and reason.blocks]
        parts.append(f"{hook}: {'; '.join(texts)}" if texts else hook)
    return "; ".join(parts)


def _reason(spec: ResultSpec, status: ResultStatus, response: str) -> HookReason:
    failed = status.phase == "Failed"
    return HookReason(
        spec.hook,
        status.message or status.phase.lower(),
        policy=spec.policy.name,
        version=spec.to_version or "",
        since=status.since,
        failed=failed,
        blocks=not failed or f"policy {spec.policy.name} has failed" in response,
    )


def _other_extensions(response: str, policies: Sequence[HookReason]) -> str:
    """The part of a response that is not about these policies."""
    rest = response
    for reason in policies:
        rest = rest.replace(one_line(reason.text), "")
    rest = rest.strip(" ,;")
    # Cluster API keeps responses for a while: the results of policies may be newer.
    return "" if policies and "policy " in rest else rest
