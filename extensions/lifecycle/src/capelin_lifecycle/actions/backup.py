"""Backs up a workload cluster, by Velero or by CSI snapshots, and waits until that is complete."""

from typing import Any, Final, cast

from capelin.api import Resource
from capelin.client import Client, Invalid, NotServed
from capelin.controller import redact

from capelin_lifecycle.actions.action import Lasting, Run
from capelin_lifecycle.actions.restoring import VolumeSnapshot
from capelin_lifecycle.actions.snapshots import take_snapshots
from capelin_lifecycle.actions.workload import (
    created_object,
    find_or_create,
    new_manifest,
    workload_client,
)
from capelin_lifecycle.api.actions import Velero, VolumeSnapshots
from capelin_lifecycle.policies.verdict import SLOW_SECONDS, Verdict, done, failed

BACKUPS: Final = Resource("velero.io", "v1", "Backup", "backups")
_SNAPSHOT: Final = VolumeSnapshot.resource
_LACKS_VELERO: Final = (
    f"the workload cluster has no kind {BACKUPS.kind} of {BACKUPS.api_version}:"
    " install Velero there"
)
_LACKS_SNAPSHOTS: Final = (
    f"the workload cluster has no kind {_SNAPSHOT.kind} of {_SNAPSHOT.api_version}: install the"
    " snapshot controller and the CRDs of CSI snapshots there"
)
_OVER: Final = {"Failed", "PartiallyFailed", "FailedValidation", "Deleting"}


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
                return await take_snapshots(
                    run, client, backup.volume_snapshots or VolumeSnapshots()
                )
            except NotServed:
                missing = _LACKS_VELERO if backup.velero is not None else _LACKS_SNAPSHOTS
                return Verdict("Running", missing, SLOW_SECONDS)
            except Invalid as error:
                return failed(f"the backup was rejected: {redact(str(error))}")


async def _velero(run: Run, client: Client, velero: Velero) -> Verdict:
    manifest = new_manifest(run, BACKUPS, velero.namespace, run.cluster.name, velero.spec)
    live = await find_or_create(client, BACKUPS, manifest)
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
