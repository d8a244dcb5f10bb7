"""What a replica keeps of each Cluster, so that a hook counts quotas without listing Clusters."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import orjson
from capelin.api import AnyObject, BaseObject, Resource, Unstructured
from capelin.api.capi import Cluster
from capelin.contract import PAUSED_ANNOTATION

from capelin_lifecycle.actions.counting import CountedCluster, counted
from capelin_lifecycle.api import Quota
from capelin_lifecycle.policies.occurrence import Occurrence, cluster_occurrence
from capelin_lifecycle.policies.selection import KnownPolicy, matches

_HOOK: Final = "BeforeClusterCreate"
"""The hook of all quotas."""
_CHANGING: Final = frozenset({"managedFields", "resourceVersion"})
"""What changes with the status, which is not kept."""
_TURN_SECONDS: Final = 0.005


class WholeCluster(BaseObject):
    """A Cluster with all that its spec has, as expressions see it."""

    resource: ClassVar[Resource] = Cluster.resource

    spec: AnyObject = {}


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What decides whether a hook can be about a Cluster now."""

    class_namespace: str
    """Namespace of its ClusterClass."""
    is_created: bool
    """Whether it has its infrastructure or its control plane."""
    is_deleted: bool
    """Whether it is being deleted."""
    is_paused: bool
    """Whether nothing may happen to it now."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> "ClusterFacts":
        """The facts about a Cluster."""
        topology: Mapping[str, Any] = spec.get("topology") or {}
        class_ref: Mapping[str, Any] = topology.get("classRef") or {}
        annotations: Mapping[str, str] = metadata.get("annotations") or {}
        return cls(
            class_namespace=str(class_ref.get("namespace") or metadata.get("namespace") or ""),
            is_created=bool(spec.get("infrastructureRef") or spec.get("controlPlaneRef")),
            is_deleted=metadata.get("deletionTimestamp") is not None,
            is_paused=bool(spec.get("paused")) or PAUSED_ANNOTATION in annotations,
        )


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """A Cluster without its status, as small as it can be."""

    occurrence: Occurrence
    document: bytes
    facts: ClusterFacts
    _counts: dict[tuple[str, int], CountedCluster] = field(
        default_factory=dict[tuple[str, int], CountedCluster], compare=False
    )

    @classmethod
    def of(cls, manifest: Unstructured) -> "KnownCluster":
        """A Cluster as it was read."""
        metadata = {k: v for k, v in manifest["metadata"].items() if k not in _CHANGING}
        kept = {"metadata": metadata, "spec": manifest.get("spec") or {}}
        facts = ClusterFacts.of(metadata, kept["spec"])
        return cls(cluster_occurrence(_HOOK, manifest), orjson.dumps(kept), facts)

    @property
    def manifest(self) -> Unstructured:
        """The Cluster without its status."""
        return orjson.loads(self.document)

    def is_counted(self, policy: KnownPolicy, labels: Mapping[str, str] | None) -> bool:
        """Whether a policy is for it, in a namespace with these labels."""
        return matches(policy, self.occurrence, labels)

    async def counted(self, policy: KnownPolicy, quota: Quota) -> CountedCluster:
        """It as the quota of a policy counts it."""
        version = policy.uid, policy.generation
        if version not in self._counts:
            for other in [key for key in self._counts if key[0] == policy.uid]:
                del self._counts[other]
            self._counts[version] = await counted(policy, quota, orjson.loads(self.document))
        return self._counts[version]


async def counted_copies(
    clusters: Mapping[str, KnownCluster],
    own: KnownCluster,
    policy: KnownPolicy,
    quota: Quota,
    namespaces: Mapping[str, Mapping[str, str]],
) -> list[CountedCluster]:
    """All Clusters that a policy's quota counts, and `own`, which may be newer than its copy."""
    found: list[CountedCluster] = []
    began = time.monotonic()
    for cluster in {**clusters, own.occurrence.uid: own}.values():
        if cluster.is_counted(policy, namespaces.get(cluster.occurrence.namespace)):
            found.append(await cluster.counted(policy, quota))
        if time.monotonic() - began > _TURN_SECONDS:
            # Expressions are evaluated for all Clusters when a policy is new: others wait too.
            await asyncio.sleep(0)
            began = time.monotonic()
    return found
