"""The subject of a hook call: its occurrence, and the live Cluster. Pure.

A caller may send anything, so hooks decide from the live Cluster. Of the request they take the name
of the hook, the Cluster's identity, and the versions of an upgrade, as far as they fit the
Cluster's topology.

The name of a result consists of names, so it stays the same when its Cluster or its policy is
moved, restored or created again. Its owner reference distinguishes Clusters of one name.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, cast

import orjson
from capelin.api import AnyObject, BaseObject, Resource, Unstructured
from capelin.api.capi import Cluster
from capelin.contract import PAUSED_ANNOTATION
from capelin.runtime.v1alpha1 import GeneratePatchesRequest, ValidateTopologyRequest
from capelin.versions import Version

from capelin_lifecycle.api.names import HookName, PolicyKind

_NAME_LENGTH: Final = 200
_HOOK: Final = "BeforeClusterCreate"
"""The hook of all quotas."""
_CHANGING: Final = frozenset({"managedFields", "resourceVersion"})
"""Fields of the metadata that change with the status, which copies do not have."""


# Occurrences


@dataclass(frozen=True, slots=True)
class PolicyKey:
    """Kind, namespace and name of a policy, which are the same in every management cluster."""

    kind: PolicyKind
    namespace: str | None
    name: str

    @property
    def label(self) -> str:
        """The value of a label that selects the objects of the policy."""
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
    topology: str = ""
    """Hash of the topology."""


def occurrence_of(hook: HookName, request: Any) -> Occurrence:
    """The occurrence that a request is about. It reads only JSON, which costs little."""
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
        topology=_digest(topology),
    )


def _digest(document: object) -> str:
    text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:32]


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


# Clusters


class WholeCluster(BaseObject):
    """A Cluster with all that its spec has, as expressions see it."""

    resource: ClassVar[Resource] = Cluster.resource

    spec: AnyObject = {}


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts that decide whether a hook can be about a Cluster now."""

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
    """A Cluster in its smallest form. Copies of a replica have no status."""

    occurrence: Occurrence
    document: bytes
    facts: ClusterFacts
    counts: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """How quotas count it, remembered by the uids of their policies."""

    @classmethod
    def of(cls, manifest: Unstructured) -> "KnownCluster":
        metadata = {k: v for k, v in manifest["metadata"].items() if k not in _CHANGING}
        kept = {**manifest, "metadata": metadata, "spec": manifest.get("spec") or {}}
        facts = ClusterFacts.of(metadata, kept["spec"])
        return cls(cluster_occurrence(_HOOK, manifest), orjson.dumps(kept), facts)

    @property
    def annotations(self) -> dict[str, str]:
        return self.manifest["metadata"].get("annotations") or {}

    @property
    def manifest(self) -> Unstructured:
        return orjson.loads(self.document)


def requested_version(request: Any) -> str:
    """The resource version of the Cluster in a request."""
    metadata = cast("dict[str, Any]", request.cluster_json.get("metadata") or {})
    return str(metadata.get("resourceVersion", ""))


TopologyRequest = GeneratePatchesRequest | ValidateTopologyRequest


def topology_cluster(request: TopologyRequest) -> Occurrence:
    """The Cluster that a request about its templates names, by the builtin variables."""
    builtin: dict[str, Any] = {}
    for variable in request.variables:
        value: object = variable.value
        if variable.name == "builtin" and isinstance(value, dict):
            builtin = cast("dict[str, Any]", value)
    found: object = builtin.get("cluster")
    cluster = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return Occurrence(
        hook="GeneratePatches",
        namespace=str(cluster.get("namespace", "")),
        cluster=str(cluster.get("name", "")),
        uid=str(cluster.get("uid", "")),
    )


def live_occurrence(requested: Occurrence, live: KnownCluster) -> Occurrence:
    """The occurrence of a request, with everything but its versions from the live Cluster."""
    return replace(
        live.occurrence,
        hook=requested.hook,
        from_version=requested.from_version,
        to_version=requested.to_version,
    )


def contradiction(requested: Occurrence, live: KnownCluster) -> str | None:
    """Why Cluster API would not call this hook for the live Cluster. `None` if it would."""
    hook: HookName = requested.hook
    facts = live.facts
    if hook == "BeforeClusterDelete":
        return None if facts.is_deleted else "it is not being deleted"
    if hook == "BeforeClusterCreate":
        return None
    if not facts.is_created:
        return "it has not been created"
    if requested.to_version is None:
        return None
    return _version_problem(requested, live.occurrence.target_version)


def _version_problem(requested: Occurrence, target: str | None) -> str | None:
    """The problem of an upgrade's versions, compared with the version of the live topology.

    A step of an upgrade ends at or before that version. BeforeClusterUpgrade and
    AfterClusterUpgrade are about the whole upgrade.
    """
    to = _parsed(requested.to_version)
    wanted = _parsed(target)
    if to is None or wanted is None:
        return f"its topology has version {target}, not {requested.to_version}"
    whole = requested.hook in ("BeforeClusterUpgrade", "AfterClusterUpgrade")
    if to > wanted or (whole and to != wanted):
        return f"its topology has version {target}, not {requested.to_version}"
    start = _parsed(requested.from_version)
    if requested.from_version is not None and (start is None or start > to):
        return f"no upgrade leads from {requested.from_version} to {requested.to_version}"
    return None


def _parsed(text: str | None) -> Version | None:
    try:
        return Version.parse(text or "")
    except ValueError:
        return None
