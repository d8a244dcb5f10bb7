"""The policies of the lifecycle extension, and the reasons why Clusters wait for them."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from capelin.api import BaseObject
from capelin.client import Client, NotServed
from capelin_lifecycle.api import (
    ClusterLifecyclePolicy,
    LifecyclePolicy,
    LifecycleResult,
    Policy,
)
from capelin_lifecycle.policies.selection import KnownPolicy
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from capelin_cli.status.cluster_tree import Node
from capelin_cli.status.condition_messages import HookReason
from capelin_cli.terminal.tables import plain

ObjectT = TypeVar("ObjectT", bound=BaseObject)


async def read_policies(client: Client) -> list[Policy]:
    """All policies. Empty if the extension is not installed."""
    found = [*await _all(client, LifecyclePolicy), *await _all(client, ClusterLifecyclePolicy)]
    return sorted(found, key=lambda policy: (policy.namespace or "", policy.name))


async def read_results(client: Client, namespace: str | None = None) -> list[LifecycleResult]:
    """All results. Empty if the extension is not installed."""
    found = await _all(client, LifecycleResult, namespace)
    return sorted(found, key=lambda result: (result.namespace or "", result.name))


def policy_name(policy: Policy | KnownPolicy) -> str:
    """The name of a policy as in the settings of a ClusterClass."""
    return f"{policy.namespace}/{policy.name}" if policy.namespace else policy.name


async def _all(client: Client, kind: type[ObjectT], namespace: str | None = None) -> list[ObjectT]:
    try:
        return (await client.list(kind, namespace)).items
    except NotServed:
        return []


def reason_nodes(reasons: Iterable[HookReason]) -> list[Node]:
    """The reasons why a Cluster waits, each as a row of its tree."""
    return [
        Node(
            title=f"{reason.hook}/{reason.policy}" if reason.policy else reason.hook,
            state="bad" if reason.failed else "waiting",
            version=reason.version,
            message=reason.message + (f" (since {_time(reason.since)})" if reason.since else ""),
        )
        for reason in reasons
    ]


def policy_list(policies: Sequence[Policy], results: Sequence[LifecycleResult]) -> RenderableType:
    """The policies, each above its message and its results that are not done.

    Lists and no table: names, hooks and messages stay whole on a narrow terminal.
    """
    lines: list[RenderableType] = []
    for policy in policies:
        name = policy_name(policy)
        state, message = _policy_state(policy)
        rest = f"  {policy.spec.hook}  {policy.spec.action.name}  {state}"
        lines.append(Text.assemble((name, "bold"), rest))
        if message:
            lines.append(_indented(message))
        for result in results:
            status = result.status
            reference = result.spec.policy
            named = (reference.kind, reference.namespace, reference.name)
            is_own = named == (policy.resource.kind, policy.namespace, policy.name)
            if is_own and status and status.phase != "Done":
                cluster = f"{result.namespace}/{result.spec.cluster.name}"
                since = _time(status.since)
                lines.append(
                    _indented(f"{cluster}  {status.phase} since {since}: {status.message}")
                )
    return Group(*lines)


def _indented(text: str) -> Padding:
    return Padding(plain(text), (0, 0, 0, 2))


def _policy_state(policy: Policy) -> tuple[str, str]:
    if policy.spec.suspend:
        return "Suspended", ""
    conditions = policy.status.conditions if policy.status else []
    for condition in conditions:
        if condition.type == "Valid" and condition.status != "True":
            return "Invalid", condition.message
        if condition.type == "Ready" and condition.reason == "InvalidSource":
            return "NotReady", condition.message
    return ("Ready" if conditions else "Unknown"), ""


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
