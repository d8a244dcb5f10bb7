"""The calls of hooks in a plan, with the lifecycle policies that match each. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from capelin.api import Unstructured
from capelin.runtime.v1alpha1 import CLUSTER_API
from capelin_lifecycle.api import Policy
from capelin_lifecycle.api.names import LIFECYCLE_HOOKS
from capelin_lifecycle.policies.clusters import Occurrence, cluster_occurrence
from capelin_lifecycle.policies.selection import KnownPolicy, selected
from capelin_lifecycle.reconcilers.registration import handler_name

from capelin_cli.explain.facts import at, text_at
from capelin_cli.explain.model import Reference
from capelin_cli.plan.extensions import RecordedCall
from capelin_cli.plan.model import HookCall
from capelin_cli.status.policies import policy_name

LIFECYCLE: Final = "lifecycle"
"""The ExtensionConfig of the lifecycle extension."""
_PURE: Final = frozenset(hook.id.name for hook in CLUSTER_API if hook.pure)


def hook_calls(
    calls: Iterable[RecordedCall],
    cluster: Reference,
    policies: Sequence[Policy],
    namespace_labels: Mapping[str, str],
) -> list[HookCall]:
    """The calls about a Cluster, each once, in their order, without hooks that only compute."""
    known = [KnownPolicy.of(policy) for policy in policies]
    found = list(_calls(calls, cluster, known, namespace_labels))
    return [each for index, each in enumerate(found) if each not in found[:index]]


def _calls(
    calls: Iterable[RecordedCall],
    cluster: Reference,
    policies: Sequence[KnownPolicy],
    namespace_labels: Mapping[str, str],
) -> Iterator[HookCall]:
    for call in calls:
        if call.hook in _PURE or _cluster_of(call.request) != (cluster.name, cluster.namespace):
            continue
        reached = text_at(call.request, "kubernetesVersion")
        start = text_at(call.request, "fromKubernetesVersion") or None
        end = reached or text_at(call.request, "toKubernetesVersion") or None
        matching: list[KnownPolicy] = []
        handler, _, extension = call.handler.rpartition(".")
        if extension == LIFECYCLE and call.hook in LIFECYCLE_HOOKS:
            matching = [
                policy
                for policy in selected(policies, _occurrence(call, start, end), namespace_labels)
                if handler == handler_name(call.hook, blocks=policy.blocks)
            ]
        yield HookCall(
            hook=call.hook,
            handler=call.handler,
            from_version=start,
            to_version=end,
            policies=[policy_name(policy) for policy in matching],
        )


def _occurrence(call: RecordedCall, start: str | None, end: str | None) -> Occurrence:
    cluster = cast("Unstructured", at(call.request, "cluster") or {})
    occurrence = cluster_occurrence(call.hook, cluster)
    return replace(occurrence, from_version=start, to_version=end)


def _cluster_of(request: Unstructured) -> tuple[str, str]:
    """The Cluster that a request is about, also if it is about one of its Machines."""
    if cluster := at(request, "cluster"):
        return text_at(cluster, "metadata", "name"), text_at(cluster, "metadata", "namespace")
    machine = at(request, "desired", "machine")
    return text_at(machine, "spec", "clusterName"), text_at(machine, "metadata", "namespace")
