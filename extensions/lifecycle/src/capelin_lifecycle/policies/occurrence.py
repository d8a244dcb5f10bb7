"""Which occurrence of a hook a call is about, and the name of its result for a policy.

Names identify a result, so that it stays the same one when its Cluster or its policy is moved,
restored or created again. Its owner reference tells the Clusters of one name apart.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from capelin_lifecycle.api import HookName, PolicyKind

_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True)
class PolicyKey:
    """Kind, namespace and name of a policy: what is the same in every management cluster."""

    kind: PolicyKind
    namespace: str | None
    name: str

    @property
    def label(self) -> str:
        """The value of a label that selects what belongs to the policy."""
        identity = (self.kind, self.namespace or "", self.name)
        return hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A hook, called for a step in the life of a Cluster."""

    hook: HookName
    namespace: str
    cluster: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    cluster_class: str = ""
    from_version: str | None = None
    to_version: str | None = None
    target_version: str | None = None
    """The version of the topology: where an upgrade over several steps ends."""


def occurrence_of(hook: HookName, request: Any) -> Occurrence:
    """The occurrence that a request is about; read from its JSON, which costs little."""
    reached = getattr(request, "kubernetes_version", None)
    return replace(
        cluster_occurrence(hook, request.cluster_json),
        from_version=getattr(request, "from_kubernetes_version", None),
        to_version=reached or getattr(request, "to_kubernetes_version", None),
    )


def cluster_occurrence(hook: HookName, cluster: Mapping[str, Any]) -> Occurrence:
    """The occurrence of a hook without versions for a Cluster, as JSON."""
    metadata = _part(cluster, "metadata")
    topology = _part(_part(cluster, "spec"), "topology")
    return Occurrence(
        hook=hook,
        namespace=str(metadata.get("namespace", "")),
        cluster=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        labels=metadata.get("labels") or {},
        cluster_class=str(_part(topology, "classRef").get("name", "")),
        target_version=topology.get("version"),
    )


def _part(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    return cast("dict[str, Any]", document.get(key) or {})


def result_name(policy: PolicyKey, occurrence: Occurrence) -> str:
    """The name of the result, the same for every call, replica and management cluster."""
    identity = (
        policy.kind,
        policy.namespace or "",
        policy.name,
        occurrence.cluster,
        occurrence.hook,
        occurrence.from_version or "",
        occurrence.to_version or "",
    )
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:12]
    step = re.sub(r"(?<!^)(?=[A-Z])", "-", occurrence.hook).lower()
    return f"{occurrence.cluster[:_NAME_LENGTH].rstrip('.-')}-{step}-{digest}"
