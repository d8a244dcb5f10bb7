"""Takes CSI snapshots of volumes, and keeps the manifests that restore them.

The objects of a snapshot are deleted with the workload cluster. Only they contain the name that the
snapshot has in the storage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from capelin.api import Resource, Unstructured
from capelin.client import Client
from capelin.contract import CLUSTER_NAME_LABEL, label_value
from capelin.controller import redact
from capelin.yaml import write_yaml

from capelin_lifecycle.actions.action import Run
from capelin_lifecycle.actions.workload import (
    created_object,
    find_or_create,
    new_manifest,
    unique_name,
)
from capelin_lifecycle.api.actions import VolumeSnapshots
from capelin_lifecycle.policies.verdict import SLOW_SECONDS, Verdict

SNAPSHOTS: Final = Resource("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots")
CONTENTS: Final = Resource(
    SNAPSHOTS.group, "v1", "VolumeSnapshotContent", "volumesnapshotcontents", namespaced=False
)
CLAIMS: Final = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
_CONFIG_MAPS: Final = Resource("", "v1", "ConfigMap", "configmaps")
MANIFESTS: Final = "restore.yaml"
"""The key in a ConfigMap."""
_BEFORE_DELETION: Final = "BeforeClusterDelete"
_CLAIM_FIELDS: Final = ("accessModes", "resources", "storageClassName", "volumeMode")
_IN_CONFIG_MAP: Final = 500
"""Volumes whose manifests have room in one ConfigMap."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A claim and the VolumeSnapshot of its volume."""

    claim: Unstructured
    manifest: Unstructured
    status: dict[str, Any]

    @property
    def content(self) -> str:
        """The name of its VolumeSnapshotContent. Empty until the storage has the snapshot."""
        is_ready = self.status.get("readyToUse") and not self.error
        return str(self.status.get("boundVolumeSnapshotContentName", "")) if is_ready else ""

    @property
    def error(self) -> str:
        """The storage's last error. The snapshot controller tries again."""
        error: dict[str, Any] = self.status.get("error") or {}
        return str(error.get("message", "an error without a message")) if error else ""


async def take_snapshots(run: Run, client: Client, wanted: VolumeSnapshots) -> Verdict:
    """Take a snapshot of each bound claim.

    Raises:
        NotServed: The workload cluster has no snapshots.
        Invalid: It rejects one.
    """
    live = [
        await _snapshot(client, claim, snapshot_manifest(run, wanted, claim))
        for claim in await _bound_claims(client, wanted.namespaces)
    ]
    created = [created_object(each.manifest) for each in live]
    broken = [each for each in live if each.error]
    if broken:
        text = f"{_named(broken)} have errors: {redact(broken[0].error)}"
        return Verdict("Running", text, SLOW_SECONDS, created)
    waiting = [each for each in live if not each.content]
    if waiting:
        return Verdict("Running", f"{_named(waiting)} are not ready", SLOW_SECONDS, created)
    message = f"{len(live)} volumes have snapshots"
    if run.result.spec.hook != _BEFORE_DELETION or not live:
        return Verdict("Done", message, created=created)
    kept = await _keep(run, client, live)
    names = ", ".join(f"{run.cluster.namespace}/{each['metadata']['name']}" for each in kept)
    created += [created_object(each, "Management") for each in kept]
    return Verdict("Done", f"{message}: restore them with ConfigMap {names}", created=created)


def snapshot_manifest(run: Run, wanted: VolumeSnapshots, claim: Unstructured) -> Unstructured:
    metadata = claim["metadata"]
    spec: Unstructured = {"source": {"persistentVolumeClaimName": metadata["name"]}}
    if wanted.class_name is not None:
        spec["volumeSnapshotClassName"] = wanted.class_name
    name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
    return new_manifest(run, SNAPSHOTS, namespace, name, spec, uid)


def restoring(snapshot: Snapshot, content: Unstructured) -> list[Unstructured]:
    """The manifests that restore a claim in another cluster with the same storage."""
    metadata = snapshot.manifest["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    spec, claim = content["spec"], snapshot.claim["spec"]
    source = {"apiGroup": SNAPSHOTS.group, "kind": SNAPSHOTS.kind, "name": name}
    return [
        {
            "apiVersion": CONTENTS.api_version,
            "kind": CONTENTS.kind,
            "metadata": {"name": name},
            "spec": {
                "driver": spec["driver"],
                "deletionPolicy": "Retain",
                "source": {"snapshotHandle": content["status"]["snapshotHandle"]},
                "volumeSnapshotRef": {"name": name, "namespace": namespace},
            },
        },
        {
            "apiVersion": SNAPSHOTS.api_version,
            "kind": SNAPSHOTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"source": {"volumeSnapshotContentName": name}},
        },
        {
            "apiVersion": CLAIMS.api_version,
            "kind": CLAIMS.kind,
            "metadata": {"name": snapshot.claim["metadata"]["name"], "namespace": namespace},
            "spec": {
                **{field: claim[field] for field in _CLAIM_FIELDS if field in claim},
                "dataSource": source,
            },
        },
    ]


async def _keep(run: Run, client: Client, snapshots: Sequence[Snapshot]) -> list[Unstructured]:
    """Create the ConfigMaps of the Cluster's namespace with which users restore its claims."""
    config_maps: list[Unstructured] = []
    for first in range(0, len(snapshots), _IN_CONFIG_MAP):
        manifests = [
            manifest
            for each in snapshots[first : first + _IN_CONFIG_MAP]
            for manifest in restoring(each, await client.get(CONTENTS, each.content))
        ]
        config_map = _config_map(run, first, manifests)
        await find_or_create(run.client, _CONFIG_MAPS, config_map)
        config_maps.append(config_map)
    return config_maps


def _config_map(run: Run, first: int, manifests: Sequence[Unstructured]) -> Unstructured:
    prefix = f"{run.cluster.name}-snapshots"
    cluster = {CLUSTER_NAME_LABEL: label_value(run.cluster.name)}
    text = write_yaml({"apiVersion": "v1", "kind": "List", "items": [*manifests]})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": unique_name(prefix, *run.result.attempt_id, str(first)),
            "namespace": run.cluster.namespace,
            "labels": {**run.labels, **cluster},
        },
        "immutable": True,
        "data": {MANIFESTS: text},
    }


async def _snapshot(client: Client, claim: Unstructured, manifest: Unstructured) -> Snapshot:
    found = await find_or_create(client, SNAPSHOTS, manifest)
    return Snapshot(claim, manifest, found.get("status") or {})


async def _bound_claims(client: Client, namespaces: Sequence[str]) -> list[Unstructured]:
    claims = [
        claim
        for namespace in namespaces or [None]
        for claim in (await client.list(CLAIMS, namespace)).items
    ]
    return sorted(
        (claim for claim in claims if claim.get("status", {}).get("phase") == "Bound"),
        key=lambda claim: (claim["metadata"]["namespace"], claim["metadata"]["name"]),
    )


def _named(snapshots: Sequence[Snapshot]) -> str:
    names = [
        f"{each.manifest['metadata']['namespace']}/{each.manifest['metadata']['name']}"
        for each in snapshots
    ]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"snapshots {', '.join(names[:_NAMED])}{more}"
