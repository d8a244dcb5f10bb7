"""Restores a cluster from a backup, in place or after its loss. Its provider does the work."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from capelin.api.core import Secret
from capelin.errors import InvalidInputError, MissingError, UserError
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.backup.files import read_authorities
from capelin_control_plane.backup.restores import backup_of, restore_request
from capelin_control_plane.desired.control_plane import (
    RESTORE_ANNOTATION,
    InvalidSpecError,
    requested_restore,
)
from capelin_control_plane.operations.restore import RESTORING, withdraw_restore
from rich.console import Console

from capelin_cli.clusters.backup_places import (
    BackupPlace,
    choose_backup,
    key_of,
    open_backups,
)
from capelin_cli.clusters.backups import age_text, backup_settings
from capelin_cli.clusters.cluster_verbs import start_bootstrap_provider
from capelin_cli.clusters.lost_clusters import LostCluster, create_again, create_secrets
from capelin_cli.clusters.operations import (
    BEGINS,
    ControlPlaneOperation,
    Failure,
    condition_of,
    find_control_plane,
    operation,
)
from capelin_cli.environments.connection import ClusterName, find_environment
from capelin_cli.terminal.checklist import Checklist


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A restore that the user has to confirm."""

    which: ClusterName
    control_plane: str
    backup: str
    text: str


async def plan_restore(which: ClusterName, backup: str | None) -> RestorePlan:
    """Find the control plane, and the newest backup if none is named."""
    async with which.client() as client:
        try:
            control_plane = await find_control_plane(client, which)
        except MissingError as error:
            hint = "To create a lost cluster again, name the key of its backups with --key-file."
            raise MissingError(error.message, reason=error.reason, hint=hint) from error
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
    async with operation(plan.which, within) as (restore, _):
        withdraw = await request_restore(
            restore, plan, restore_request(plan.backup, datetime.now(UTC))
        )
        await _follow(restore, plan, withdraw)


async def request_restore(
    restore: ControlPlaneOperation, plan: RestorePlan, request: str
) -> Callable[[CapelinControlPlane, str], Awaitable[None]]:
    """Request a restore. Returns the function that withdraws a request that fails."""
    # Without it, a control plane whose first restore has failed would begin with empty data.
    previous = (await restore.read()).metadata.annotations.get(RESTORE_ANNOTATION)
    await restore.annotate(RESTORE_ANNOTATION, request)

    async def withdraw(found: CapelinControlPlane, failure: str) -> None:
        await withdraw_restore(restore.client, found, request, previous)
        state = "Nothing was changed."
        if previous is not None:
            state = f"The provider continues with the earlier request: {backup_of(previous)}."
        raise UserError(
            f"Cluster {plan.which.name} cannot be restored from backup {plan.backup}.",
            reason=f"{failure}.",
            hint=f"{state} See capelin backups for others.",
        )

    return withdraw


async def restore_lost_cluster(
    which: ClusterName, lost: LostCluster, within: float, *, new_endpoint: bool
) -> None:
    """Create a lost cluster again from its backup, and wait until it is ready."""
    kinds = {str(item["kind"]) for item in lost.objects.items}
    async with which.client() as client:
        with Checklist(Console()).shown() as checklist:
            # Another management cluster has its own providers.
            if which.kubeconfig is None and any(it.startswith("KubeadmConfig") for it in kinds):
                environment = find_environment(which.environment)
                with environment.locked("create"):
                    await start_bootstrap_provider(environment, checklist)
            with checklist.step(f"objects of cluster {which.name} created") as line:
                name = await create_again(client, which, lost, new_endpoint=new_endpoint)
                line.detail = f"{len(lost.secrets)} Secrets, {len(lost.objects.items)} objects"
            plan = RestorePlan(which, name, lost.manifest.name, "")

            async def fail(_: CapelinControlPlane, failure: str) -> None:
                raise UserError(
                    f"Cluster {which.name} is not restored from backup {plan.backup} yet.",
                    reason=f"{failure}.",
                    hint="Fix that. The provider tries again by itself: see capelin status.",
                )

            restore = ControlPlaneOperation(client, which, within, name, checklist)
            await _follow(restore, plan, fail)
    if lost.objects.omitted:
        names = ", ".join(lost.objects.omitted)
        Console().print(f"Not in the backup: {names}. Create them yourself.", soft_wrap=True)


async def _follow(
    restore: ControlPlaneOperation,
    plan: RestorePlan,
    on_failure: Callable[[CapelinControlPlane, str], Awaitable[None]],
) -> None:
    """Wait until the provider has restored a control plane, and its cluster is ready."""

    def progress(found: CapelinControlPlane) -> str | Failure | None:
        request = found.metadata.annotations.get(RESTORE_ANNOTATION)
        if request is None or backup_of(request) != plan.backup:
            return None
        condition = condition_of(found, RESTORING)
        if condition is None:
            return BEGINS
        is_failure = condition.status == "False"
        return (
            Failure(f"{condition.reason}: {condition.message}") if is_failure else condition.message
        )

    title = f"cluster {plan.which.name} restored from {plan.backup}"
    await restore.follow(title, progress, of="the restore", on_failure=on_failure)
    await restore.follow_until_ready()


async def create_authorities(which: ClusterName, name: str | None, key_file: Path) -> None:
    """Create the Secrets of a lost cluster's CAs and keys, unless others exist."""
    place = BackupPlace(key_file)
    key = await key_of(which, place)
    async with open_backups(which, place) as found:
        backup = choose_backup(found, which, name)
        content = await read_authorities(backup.store, backup.manifest, key)
    secrets = [Secret.read(item) for item in json.loads(content)["items"]]
    async with which.client() as client:
        await create_secrets(client, which, tuple(secrets))
    names = ", ".join(secret.name for secret in secrets)
    Console().print(f"Secrets from backup {backup.manifest.name}: {names}.", soft_wrap=True)
