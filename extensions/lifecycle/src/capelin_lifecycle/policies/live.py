"""Compares requests with the live Cluster: a caller may send anything. Pure.

A hook decides from the live Cluster. Of the request it takes the name of the hook, the Cluster's
identity, and the versions of an upgrade, as far as they fit the Cluster's topology.
"""

from dataclasses import replace
from typing import Any, cast

from capelin.runtime.v1alpha1 import GeneratePatchesRequest, ValidateTopologyRequest
from capelin.versions import Version

from capelin_lifecycle.api import HookName
from capelin_lifecycle.policies.clusters import KnownCluster
from capelin_lifecycle.policies.occurrence import Occurrence


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
    """Why Cluster API would not call this hook for the live Cluster; `None` if it would."""
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
    """What is wrong with the versions of an upgrade, by the version of the live topology.

    A step of an upgrade ends at or before that version; BeforeClusterUpgrade and
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
