"""Lets a cluster's control plane sleep, and wakes it."""

from capelin.contract import ASLEEP, AVAILABLE
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION

from capelin_cli.clusters.operations import BEGINS, condition_of, operation
from capelin_cli.environments.connection import ClusterName


async def sleep_cluster(which: ClusterName, within: float | None) -> None:
    """Request the sleep of a cluster, and wait until none of its components runs.

    With None, the request is all.
    """
    async with operation(which, within or 0) as (sleep, _):
        await sleep.request(SLEEP_ANNOTATION)
        if within is not None:
            name = f"cluster {which.name}"
            await sleep.follow(f"{name} sleeps", not_asleep_reason, of=name)


async def wake_cluster(which: ClusterName, within: float | None) -> None:
    """Request the end of a cluster's sleep, and wait until it is ready.

    With None, the request is all.
    """
    async with operation(which, within or 0) as (wake, _):
        await wake.request(WAKE_ANNOTATION)
        if within is not None:
            name = f"cluster {which.name}"
            await wake.follow(f"API of {name} serves", not_awake_reason, of=name)
            await wake.follow_until_ready()


def not_asleep_reason(control_plane: CapelinControlPlane) -> str | None:
    """Why a control plane does not sleep yet. None if it does."""
    condition = condition_of(control_plane, ASLEEP)
    if condition is None:
        return BEGINS
    return None if condition.reason == ASLEEP else condition.message


def not_awake_reason(control_plane: CapelinControlPlane) -> str | None:
    """Why the API does not serve yet. None if it does."""
    condition = condition_of(control_plane, AVAILABLE)
    return None if condition is None or condition.status == "True" else condition.message
