"""Lets a cluster's control plane sleep, and wakes it. Its provider does the work."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from capelin.client import Client
from capelin.contract import ASLEEP, AVAILABLE, find_condition, is_condition_true
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION
from rich.console import Console

from capelin_cli.clusters.backups import find_control_plane
from capelin_cli.clusters.cluster_verbs import ClusterName
from capelin_cli.status.readiness import follow_until_ready
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.waiting import wait_for

_HINT = "The provider continues: see capelin status."


async def sleep_cluster(which: ClusterName, within: float | None) -> None:
    """Request the sleep of a cluster, and wait until none of its components runs.

    With None, the request is all.
    """
    async with which.client() as client:
        control_plane = await _annotated(client, which, SLEEP_ANNOTATION)
        if within is None:
            return
        checklist = Checklist(Console())
        with checklist.shown(), checklist.step(f"cluster {which.name} sleeps") as line:
            reason = _reason(client, which, control_plane, not_asleep_reason)
            show = checklist.showing(line)
            await wait_for(f"cluster {which.name}", reason, within, show, _HINT)
            line.detail = ""


async def wake_cluster(which: ClusterName, within: float | None) -> None:
    """Request the end of a cluster's sleep, and wait until it is ready.

    With None, the request is all.
    """
    async with which.client() as client:
        control_plane = await _annotated(client, which, WAKE_ANNOTATION)
        if within is None:
            return
        with Checklist(Console()).shown() as checklist:
            with checklist.step(f"API of cluster {which.name} serves") as line:
                reason = _reason(client, which, control_plane, not_awake_reason)
                show = checklist.showing(line)
                await wait_for(f"cluster {which.name}", reason, within, show, _HINT)
                line.detail = ""
            title = f"cluster {which.name} ready"
            await follow_until_ready(
                checklist, client, which.name, which.namespace, within, title=title
            )


def not_asleep_reason(status: Status) -> str | None:
    """Why a control plane does not sleep yet. None if it does."""
    condition = find_condition(status.conditions, ASLEEP)
    if condition is None:
        return "the provider begins"
    return None if condition.reason == ASLEEP else condition.message


def not_awake_reason(status: Status) -> str | None:
    """Why the API does not serve yet. None if it does."""
    condition = find_condition(status.conditions, AVAILABLE)
    if is_condition_true(status.conditions, AVAILABLE) or condition is None:
        return None
    return condition.message


def _reason(
    client: Client, which: ClusterName, name: str, reason_of: Callable[[Status], str | None]
) -> Callable[[], Awaitable[str | None]]:
    async def reason() -> str | None:
        found = await client.get(CapelinControlPlane, name, which.namespace)
        return reason_of(found.status or Status())

    return reason


async def _annotated(client: Client, which: ClusterName, annotation: str) -> str:
    control_plane = await find_control_plane(client, which)
    patch = {"metadata": {"annotations": {annotation: datetime.now(UTC).isoformat()}}}
    await client.patch(CapelinControlPlane, control_plane.name, which.namespace, patch)
    return control_plane.name
