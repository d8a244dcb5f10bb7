"""Selects the policies for a Cluster, a hook and a version."""

import hashlib
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from capelin.contract import PAUSED_ANNOTATION, find_condition

from capelin_lifecycle.api.names import PolicyKind
from capelin_lifecycle.api.policies import ClusterPolicySpec, Policy, PolicySpec, Selector, Versions
from capelin_lifecycle.policies.clusters import Occurrence, PolicyKey
from capelin_lifecycle.reasons import Reason
from capelin_lifecycle.sandbox.pool import Owner

_COMPARISON = re.compile(r"(>=|<=|>|<|=)?v?(\d+)\.(\d+)(?:\.(\d+))?")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
    "": operator.eq,
}


@dataclass(frozen=True, slots=True)
class KnownPolicy:
    """A policy as the extension works with it."""

    kind: PolicyKind
    namespace: str | None
    name: str
    uid: str
    generation: int
    spec: PolicySpec
    problem: str | None = None
    """Why it cannot be used."""
    digest: str = ""
    """Hash of its spec: a generation starts again when a policy is moved or restored."""
    is_paused: bool = False
    """Whether its annotation pauses it."""
    created: datetime | None = None
    """When it was created in this management cluster."""

    @classmethod
    def of(cls, policy: Policy, problem: str | None = None) -> "KnownPolicy":
        kind: Any = policy.resource.kind
        return cls(
            kind,
            policy.namespace,
            policy.name,
            policy.uid,
            policy.metadata.generation,
            policy.spec,
            problem or _reported_problem(policy),
            digest_of(policy.spec),
            PAUSED_ANNOTATION in policy.metadata.annotations,
            policy.metadata.creation_timestamp,
        )

    @property
    def key(self) -> PolicyKey:
        return PolicyKey(self.kind, self.namespace, self.name)

    @property
    def blocks(self) -> bool:
        """Whether Clusters wait while the extension does not respond, or the action failed."""
        return self.spec.on_failure == "Block"

    def owner(self, namespace: str) -> Owner:
        """The owner of tasks in the sandbox when the policy evaluates for a Cluster."""
        return Owner(self.uid, self.generation, namespace)

    @property
    def selects_all(self) -> bool:
        """Whether it is for all Clusters of its scope."""
        spec = self.spec
        namespaces = spec.namespace_selector if isinstance(spec, ClusterPolicySpec) else Selector()
        return not spec.classes and spec.cluster_selector == namespaces == Selector()

    def existed_at(self, moment: datetime | None) -> bool:
        """Whether it surely existed at the call of a hook. Times have whole seconds."""
        return self.created is not None and moment is not None and self.created < moment

    @property
    def sort_key(self) -> tuple[int, str, str]:
        """Its place among the policies of an occurrence."""
        return self.spec.order, self.namespace or "", self.name


def _reported_problem(policy: Policy) -> str | None:
    """Why the replica that leads found that this generation cannot be used.

    It compiles the expressions in the sandbox. The others read the result in the status.
    """
    valid = find_condition(policy.status.conditions, "Valid") if policy.status else None
    if valid is None or valid.observed_generation != policy.metadata.generation:
        return None
    return valid.message if valid.reason == str(Reason.INVALID_CONFIGURATION) else None


def digest_of(spec: PolicySpec) -> str:
    text = json.dumps(spec.dump(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def selected(
    policies: Iterable[KnownPolicy],
    occurrence: Occurrence,
    namespace_labels: Mapping[str, str] | None,
) -> list[KnownPolicy]:
    """The policies for an occurrence, in the order in which they start."""
    found = [policy for policy in policies if matches(policy, occurrence, namespace_labels)]
    return sorted(found, key=lambda policy: policy.sort_key)


def needs_namespace(
    policy: KnownPolicy, occurrence: Occurrence, namespaces: Mapping[str, Mapping[str, str]]
) -> bool:
    """Whether only the labels of a namespace decide, which the replica has not read yet."""
    spec = policy.spec
    if occurrence.namespace in namespaces or not isinstance(spec, ClusterPolicySpec):
        return False
    if spec.namespace_selector == Selector():
        return False
    anywhere = replace(policy, spec=spec.model_copy(update={"namespace_selector": Selector()}))
    return matches(anywhere, occurrence, None)


def matches(
    policy: KnownPolicy, occurrence: Occurrence, namespace_labels: Mapping[str, str] | None
) -> bool:
    spec = policy.spec
    return (
        spec.hook == occurrence.hook
        and not spec.suspend
        and policy.namespace in (None, occurrence.namespace)
        and (not spec.classes or occurrence.cluster_class in spec.classes)
        and selects(spec.cluster_selector, occurrence.labels)
        and (
            not isinstance(spec, ClusterPolicySpec)
            or selects(spec.namespace_selector, namespace_labels or {})
        )
        and (spec.versions is None or _versions_match(spec.versions, occurrence))
    )


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    for requirement in selector.match_expressions:
        present = requirement.key in labels
        is_one = present and labels[requirement.key] in requirement.values
        match requirement.operator:
            case "In" if not is_one:
                return False
            case "NotIn" if is_one:
                return False
            case "Exists" if not present:
                return False
            case "DoesNotExist" if present:
                return False
            case _:
                pass
    return True


def _versions_match(versions: Versions, occurrence: Occurrence) -> bool:
    return all(
        wanted is None or (version is not None and in_range(wanted, version))
        for wanted, version in (
            (versions.from_, occurrence.from_version),
            (versions.to, occurrence.to_version),
        )
    )


def in_range(wanted: str, version: str) -> bool:
    """Whether a version satisfies all comparisons. Of pre-releases, the release counts."""
    actual = _COMPARISON.match(version)
    if actual is None:
        return False
    numbers = tuple(int(number or 0) for number in actual.groups()[1:])
    return all(_holds(comparison, numbers) for comparison in wanted.split())


def _holds(comparison: str, numbers: tuple[int, ...]) -> bool:
    match = _COMPARISON.fullmatch(comparison)
    if match is None:
        return False
    symbol, *given = match.groups()
    bound = tuple(int(number) for number in given if number is not None)
    # Without a patch, the minor versions are compared: every v1.34.x is <=1.34, and none is >1.34.
    return _OPERATORS[symbol or ""](numbers[: len(bound)], bound)
