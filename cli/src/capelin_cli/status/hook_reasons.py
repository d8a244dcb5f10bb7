"""Why a Cluster waits for a hook: the policies of the lifecycle extension, or other extensions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from capelin.api.capi import Cluster
from capelin.contract import find_condition
from capelin_lifecycle.api import LifecycleResult, ResultSpec, ResultStatus

from capelin_cli.status.condition_messages import blocking_hooks, one_line

DELETION_HOOK = "BeforeClusterDelete"


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
    return "; ".join(_hook_text(hook, reasons) for hook in hooks)


def _hook_text(hook: str, reasons: Sequence[HookReason]) -> str:
    texts = [reason.text for reason in reasons if reason.hook == hook and reason.blocks]
    return f"{hook}: {'; '.join(texts)}" if texts else hook


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
