"""Backs up a workload cluster, by Velero or by CSI snapshots, and waits until that is complete."""

from collections.abc import Sequence
from typing import Any, Final, cast

from capelin.api import Resource, Unstructured
from capelin.client import AlreadyExists, Client, Invalid, NotServed
from capelin.controller import redact

from capelin_lifecycle.actions.action import Lasting, Run
from capelin_lifecycle.actions.workload import created_object, new_manifest, workload_client
from capelin_lifecycle.api.actions import Velero, VolumeSnapshots
from capelin_lifecycle.policies.verdict import SLOW_SECONDS, Verdict, done, failed

BACKUPS: Final = Resource("velero.io", "v1", "Backup", "backups")
SNAPSHOTS: Final = Resource("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots")
CLAIMS: Final = Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
_LACKS_VELERO: Final = (
    f"the workload cluster has no kind {BACKUPS.kind} of {BACKUPS.api_version}:"
    " install Velero there"
)
_LACKS_SNAPSHOTS: Final = (
    f"the workload cluster has no kind {SNAPSHOTS.kind} of {SNAPSHOTS.api_version}: install the"
    " snapshot controller and the CRDs of CSI snapshots there"
)
_OVER: Final = {"Failed", "PartiallyFailed", "FailedValidation", "Deleting"}
_NAMED: Final = 3


class BackupRunner(Lasting):
    """The action `backup`. Its objects stay."""

    async def reconcile(self, run: Run) -> Verdict:
        backup = run.policy.spec.action.backup
        if backup is None:
            return done()
        async with workload_client(run) as client:
            try:
                if backup.velero is not None:
                    return await _velero(run, client, backup.velero)
                return await _snapshots(run, client, backup.volume_snapshots or VolumeSnapshots())
            except NotServed:
                missing = _LACKS_VELERO if backup.velero is not None else _LACKS_SNAPSHOTS
                return Verdict("Running", missing, SLOW_SECONDS)
            except Invalid as error:
                return failed(f"the backup was rejected: {redact(str(error))}")


async def _velero(run: Run, client: Client, velero: Velero) -> Verdict:
    manifest = new_manifest(run, BACKUPS, velero.namespace, run.cluster.name, velero.spec)
    live = await _created(client, BACKUPS, manifest)
    name = f"Backup {velero.namespace}/{manifest['metadata']['name']}"
    created = [created_object(manifest)]
    status = cast("dict[str, Any]", live.get("status") or {})
    phase = status.get("phase")
    if phase == "Completed":
        return Verdict("Done", f"{name} is complete", created=created)
    if phase in _OVER:
        reason = status.get("failureReason") or "; ".join(status.get("validationErrors") or [])
        text = f"{name} is {phase}{': ' if reason else ''}{reason}"
        return Verdict("Failed", redact(text), created=created)
    return Verdict("Running", f"{name} is not complete yet", SLOW_SECONDS, created)


async def _snapshots(run: Run, client: Client, wanted: VolumeSnapshots) -> Verdict:
    live: list[Unstructured] = []
    for claim in await _bound_claims(client, wanted.namespaces):
        manifest = snapshot_manifest(run, wanted, claim)
        found = await _created(client, SNAPSHOTS, manifest)
        live.append({**manifest, "status": found.get("status") or {}})
    created = [created_object(snapshot) for snapshot in live]
    broken = [snapshot for snapshot in live if snapshot["status"].get("error")]
    waiting = [snapshot for snapshot in live if not snapshot["status"].get("readyToUse")]
    if broken:
        # The snapshot controller tries again.
        message = str(broken[0]["status"]["error"].get("message", ""))
        text = f"{_named(broken)} have errors: {redact(message)}"
        return Verdict("Running", text, SLOW_SECONDS, created)
    if waiting:
        return Verdict("Running", f"{_named(waiting)} are not ready", SLOW_SECONDS, created)
    return Verdict("Done", f"{len(live)} volumes have snapshots", created=created)


async def _bound_claims(client: Client, namespaces: Sequence[str]) -> list[Unstructured]:
    claims = [
        claim
        for namespace in namespaces or [None]
        for claim in (await client.list(CLAIMS, namespace)).items
    ]
    return sorted(
        (claim for claim in claims if _phase(claim) == "Bound"),
        key=lambda claim: (claim["metadata"]["namespace"], claim["metadata"]["name"]),
    )


def _phase(obj: Unstructured) -> str:
    return str(cast("dict[str, Any]", obj.get("status") or {}).get("phase", ""))


def snapshot_manifest(run: Run, wanted: VolumeSnapshots, claim: Unstructured) -> Unstructured:
    metadata = claim["metadata"]
    spec: Unstructured = {"source": {"persistentVolumeClaimName": metadata["name"]}}
    if wanted.class_name is not None:
        spec["volumeSnapshotClassName"] = wanted.class_name
    name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
    return new_manifest(run, SNAPSHOTS, namespace, name, spec, uid)


async def _created(client: Client, resource: Resource, manifest: Unstructured) -> Unstructured:
    metadata = manifest["metadata"]
    live = await client.find(resource, metadata["name"], metadata["namespace"])
    if live is not None:
        return live
    try:
        return await client.create(manifest, resource=resource)
    except AlreadyExists:
        return manifest


def _named(snapshots: Sequence[Unstructured]) -> str:
    names = [
        f"{snapshot['metadata']['namespace']}/{snapshot['metadata']['name']}"
        for snapshot in snapshots
    ]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"snapshots {', '.join(names[:_NAMED])}{more}"
