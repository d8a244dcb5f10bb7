"""Stores the selectors of policies for replicas that cannot read the policies.

A replica that starts and cannot read the policies must hold up exactly the Clusters that a policy
is for. So the leader stores the selectors in a ConfigMap in the namespace of the extension.
"""

import json
from collections.abc import Iterable
from typing import Any, Final, cast

from capelin.api.core import ConfigMap
from pydantic import ValidationError

from capelin_lifecycle.api.policies import ClusterPolicySpec, PolicySpec
from capelin_lifecycle.policies.selection import KnownPolicy

CONFIG_MAP: Final = "lifecycle-policies"
KEY: Final = "policies.json"


def to_text(policies: Iterable[KnownPolicy]) -> str:
    """The stored text of policies: their selectors, without their actions."""
    stored: list[dict[str, Any]] = []
    for policy in sorted(policies, key=lambda policy: (policy.sort_key, policy.kind)):
        spec = policy.spec.dump()
        spec["action"] = {}
        stored.append(
            {
                "kind": policy.kind,
                "namespace": policy.namespace,
                "name": policy.name,
                "uid": policy.uid,
                "generation": policy.generation,
                "spec": spec,
            }
        )
    return json.dumps(stored, sort_keys=True, separators=(",", ":"))


def from_text(text: str) -> list[KnownPolicy] | None:
    """The policies of a stored text, without unreadable ones. `None` if it has another format."""
    try:
        stored = cast("list[dict[str, Any]]", json.loads(text))
    except ValueError:
        return None
    policies: list[KnownPolicy] = []
    for entry in stored:
        model = ClusterPolicySpec if entry["namespace"] is None else PolicySpec
        try:
            spec = model.read(entry["spec"])
        except ValidationError:
            continue
        known = {key: value for key, value in entry.items() if key != "spec"}
        policies.append(KnownPolicy(**known, spec=spec))
    return policies


def stored_text(config_map: ConfigMap | None) -> str:
    return config_map.data.get(KEY, "") if config_map is not None else ""
