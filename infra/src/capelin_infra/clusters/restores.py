"""Restores a cluster's control plane from a backup. Its provider does the work."""

from dataclasses import dataclass
from datetime import UTC, datetime

from capelin.contract import find_condition
from capelin.errors import InvalidInputError, MissingError, UserError
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.desired import (
    RESTORE_ANNOTATION,
    InvalidSpecError,
    requested_restore,
)
from capelin_control_plane.restore_tasks import RESTORING, withdraw_restore
from rich.console import Console

from capelin_infra.clusters.backups import Persistent, age_text, backup_settings, find_control_plane
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
