"""Takes CSI snapshots of volumes. Before a deletion, it keeps the manifests that restore them."""

from collections.abc import Sequence
from typing import Final

from capelin.api import Resource, Unstructured
from capelin.client import Client
from capelin.contract import CLUSTER_NAME_LABEL, label_value
from capelin.controller import redact

from capelin_lifecycle.actions.action import POLICY_LABEL, Run
from capelin_lifecycle.actions.restoring import (
    MANIFESTS,
    VolumeSnapshot,
    VolumeSnapshotContent,
    as_file,
    content_of,
    restoring,
)
from capelin_lifecycle.actions.workload import (
    created_object,
    find_or_create,
    new_manifest,
    unique_name,
)
from capelin_lifecycle.api.actions import VolumeSnapshots
from capelin_lifecycle.api.results import MOST_CREATED
from capelin_lifecycle.policies.verdict import SLOW_SECONDS, Verdict

CLAIMS: Final = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
_CONFIG_MAPS: Final = Resource("", "v1", "ConfigMap", "configmaps")
_BEFORE_DELETION: Final = "BeforeClusterDelete"
_IN_CONFIG_MAP: Final = 250
"""The most claims in one ConfigMap, which may have 1 MiB."""
_NAMED: Final = 3


async def take_snapshots(run: Run, client: Client, settings: VolumeSnapshots) -> Verdict:
    """Take a snapshot of each bound claim.

    Raises:
        NotServed: The workload cluster has no snapshots.
        Invalid: It rejects one.
    """
    claims = await _bound_claims(client, settings.namespaces)
    if not claims:
        return Verdict("Done", "no volume needs a snapshot", created=[])
    manifests = [snapshot_manifest(run, settings, claim) for claim in claims]
    created = [created_object(manifest) for manifest in manifests]
    snapshots = await _taken(run, client, manifests)
    contents = {each.name: each for each in (await client.list(VolumeSnapshotContent)).items}
    found = [content_of(snapshot, contents) for snapshot in snapshots]
    waiting = [_key(each) for each, content in zip(manifests, found, strict=True) if not content]
    problem = _error(manifests, snapshots)
    if waiting and not problem:
        problem = f"{_named(waiting)} are not ready"
    if problem:
        return Verdict("Running", problem, SLOW_SECONDS, created[:MOST_CREATED])
    message = f"volumes with snapshots: {len(claims)}"
    if run.result.spec.hook == _BEFORE_DELETION:
        pairs = zip(claims, found, strict=True)
        restores = [restoring(claim, content) for claim, content in pairs if content]
        config_maps = await _keep(run, restores)
        names = ", ".join("/".join(_key(each)) for each in config_maps)
        message += f". To restore them, use ConfigMap {names}"
        created[:0] = [created_object(each, "Management") for each in config_maps]
    return Verdict("Done", message, created=created[:MOST_CREATED])


def snapshot_manifest(run: Run, settings: VolumeSnapshots, claim: Unstructured) -> Unstructured:
    metadata = claim["metadata"]
    spec: Unstructured = {"source": {"persistentVolumeClaimName": metadata["name"]}}
    if settings.class_name is not None:
        spec["volumeSnapshotClassName"] = settings.class_name
    name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
    return new_manifest(run, VolumeSnapshot.resource, namespace, name, spec, uid)


async def _taken(
    run: Run, client: Client, manifests: Sequence[Unstructured]
) -> list[VolumeSnapshot | None]:
    """The snapshots as they are. It creates those that are missing, which is None here."""
    labels = {POLICY_LABEL: run.labels[POLICY_LABEL]}
    listed = await client.list(VolumeSnapshot, labels=labels)
    existing = {(each.namespace or "", each.name): each for each in listed.items}
    for manifest in manifests:
        if _key(manifest) not in existing:
            await find_or_create(client, VolumeSnapshot.resource, manifest)
    return [existing.get(_key(manifest)) for manifest in manifests]


def _error(manifests: Sequence[Unstructured], snapshots: Sequence[VolumeSnapshot | None]) -> str:
    """The errors of the storage. The snapshot controller tries again."""
    broken = [
        (_key(manifest), snapshot.status.error)
        for manifest, snapshot in zip(manifests, snapshots, strict=True)
        if snapshot and snapshot.status and snapshot.status.error
    ]
    if not broken:
        return ""
    names = _named([key for key, _ in broken])
    return f"{names} have errors: {redact(broken[0][1].message)}"


async def _keep(run: Run, restores: Sequence[Sequence[Unstructured]]) -> list[Unstructured]:
    """Create ConfigMaps in the Cluster's namespace with the manifests of its claims."""
    config_maps: list[Unstructured] = []
    for first in range(0, len(restores), _IN_CONFIG_MAP):
        part = restores[first : first + _IN_CONFIG_MAP]
        config_map = _config_map(run, as_file([each for manifests in part for each in manifests]))
        await find_or_create(run.client, _CONFIG_MAPS, config_map)
        config_maps.append(config_map)
    return config_maps


def _config_map(run: Run, text: str) -> Unstructured:
    """A ConfigMap that stays when the Cluster is deleted."""
    cluster = {CLUSTER_NAME_LABEL: label_value(run.cluster.name)}
    return {
        "apiVersion": _CONFIG_MAPS.api_version,
        "kind": _CONFIG_MAPS.kind,
        "metadata": {
            "name": unique_name(f"{run.cluster.name}-snapshots", *run.result.attempt_id, text),
            "namespace": run.cluster.namespace,
            "labels": {**run.labels, **cluster},
        },
        "immutable": True,
        "data": {MANIFESTS: text},
    }


async def _bound_claims(client: Client, namespaces: Sequence[str]) -> list[Unstructured]:
    claims = [
        claim
        for namespace in namespaces or [None]
        for claim in (await client.list(CLAIMS, namespace)).items
    ]
    return sorted(
        (claim for claim in claims if claim.get("status", {}).get("phase") == "Bound"), key=_key
    )


def _key(obj: Unstructured) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _named(keys: Sequence[tuple[str, str]]) -> str:
    names = ["/".join(key) for key in keys]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"snapshots {', '.join(names[:_NAMED])}{more}"
