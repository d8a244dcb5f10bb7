"""Restores a cluster's control plane from a backup. Its provider does the work."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from capelin.api.core import Secret
from capelin.contract import find_condition
from capelin.errors import InvalidInputError, MissingError, UserError
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.backup_encryption import BackupError
from capelin_control_plane.backup_files import open_backup
from capelin_control_plane.backup_readers import StoredBackup, stored_backups
from capelin_control_plane.desired import (
    RESTORE_ANNOTATION,
    InvalidSpecError,
    requested_restore,
)
from capelin_control_plane.restore_tasks import RESTORING, withdraw_restore
from rich.console import Console

from capelin_infra.clusters.backups import (
    Persistent,
    age_text,
    backup_folder,
    backup_settings,
    choose_backup,
    find_control_plane,
)
from capelin_infra.clusters.cluster_verbs import ClusterName
from capelin_infra.environments.connection import client_of, find_environment
from capelin_infra.status.readiness import follow_until_ready
from capelin_infra.terminal.checklist import Checklist
from capelin_infra.terminal.waiting import wait_for


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A restore that the user has to confirm."""

    which: ClusterName
    control_plane: str
    backup: str
    text: str


async def plan_restore(which: ClusterName, backup: str | None) -> RestorePlan:
    """Find the control plane, and the newest backup if none is named."""
    async with client_of(find_environment(which.environment)) as client:
        control_plane = await find_control_plane(client, which)
    backup_settings(control_plane)
    last = (control_plane.status or Status()).backup
    if backup is None and last is None:
        raise MissingError(
            f"Cluster {which.name} has no backup yet.",
            hint=f"Take one: {which.command('backup')}.",
        )
    name = backup or (last.name if last else "")
    control_plane.metadata.annotations[RESTORE_ANNOTATION] = name
    try:
        requested_restore(control_plane)
    except InvalidSpecError as error:
        raise InvalidInputError(
            f"{name!r} is not the name of a backup.",
            reason="A name is a moment in UTC, such as 20260131T030000Z.",
            hint="See capelin backups.",
        ) from error
    text = f"backup {name}"
    if last is not None and last.name == name:
        text += f", which is {age_text(datetime.now(UTC) - last.time)} old"
    return RestorePlan(which, control_plane.name, name, text)


async def restore_cluster(plan: RestorePlan, within: float) -> None:
    """Request a restore, and wait until the cluster is ready again."""
    which = plan.which
    request = f"{plan.backup}@{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    async with client_of(find_environment(which.environment)) as client:
        patch = {"metadata": {"annotations": {RESTORE_ANNOTATION: request}}}
        await client.patch(CapelinControlPlane, plan.control_plane, which.namespace, patch)
        failing = Persistent()

        async def reason() -> str | None:
            found = await client.get(CapelinControlPlane, plan.control_plane, which.namespace)
            if found.metadata.annotations.get(RESTORE_ANNOTATION) != request:
                return None
            status = found.status or Status()
            condition = find_condition(status.conditions, RESTORING)
            if condition is None:
                return "the provider begins"
            failure = f"{condition.reason}: {condition.message}"
            if failing.stays(failure if condition.status == "False" else None):
                await withdraw_restore(client, found, request)
                raise UserError(
                    f"Cluster {which.name} cannot be restored from backup {plan.backup}.",
                    reason=f"{failure}.",
                    hint="Nothing was changed. See capelin backups for others.",
                )
            return condition.message

        with Checklist(Console()).shown() as checklist:
            title = f"cluster {which.name} restored from {plan.backup}"
            with checklist.step(title) as line:
                hint = "The provider continues: see capelin status."
                await wait_for("the restore", reason, within, checklist.showing(line), hint)
                line.detail = ""
            await follow_until_ready(
                checklist,
                client,
                which.name,
                which.namespace,
                within,
                title=f"cluster {which.name} ready",
            )


async def create_authorities(which: ClusterName, name: str | None, key_file: Path) -> None:
    """Create the Secrets of a lost cluster's CAs and keys, unless others exist."""
    environment = find_environment(which.environment)
    found = stored_backups(backup_folder(environment), which.namespace, which.name)
    backup = choose_backup(found, which, name)
    secrets = await asyncio.to_thread(_read_authorities, backup, key_file, environment.folder)
    async with client_of(environment) as client:
        present = [await client.find(Secret, it.name, which.namespace) for it in secrets]
        for secret, other in zip(secrets, present, strict=True):
            if other is not None and other.data != secret.data:
                raise InvalidInputError(
                    f"Secret {secret.name} exists in namespace {which.namespace}, with other keys.",
                    reason="A control plane may use them.",
                    hint=f"Delete that cluster first: {which.command('delete')}.",
                )
        for secret, other in zip(secrets, present, strict=True):
            if other is None:
                await client.create(secret)
    names = ", ".join(secret.name for secret in secrets)
    Console().print(f"Secrets from backup {backup.name}: {names}.", soft_wrap=True)


def _read_authorities(backup: StoredBackup, key_file: Path, work: Path) -> list[Secret]:
    with TemporaryDirectory(prefix="authorities-", dir=work) as folder:
        opened = Path(folder, "backup")
        try:
            open_backup(backup.folder / f"{backup.name}.json", key_file.read_bytes(), opened)
        except BackupError as error:
            raise UserError(
                f"Backup {backup.name} of cluster {backup.cluster} cannot be opened.",
                reason=f"{error}.",
                hint="Check the key, or name another backup. See capelin backups.",
            ) from error
        items = json.loads((opened / "authorities.json").read_bytes())["items"]
        return [Secret.read(item) for item in items]
