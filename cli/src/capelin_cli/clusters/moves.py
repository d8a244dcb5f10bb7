"""Checks and requests the move of a control plane, before `clusterctl move`."""

from contextlib import suppress

from capelin.client import NotFound
from capelin.contract import PAUSED, is_condition_true
from capelin.errors import InvalidInputError, NotReadyError, UserError
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.control_plane import MOVE_ANNOTATION
from capelin_control_plane.operations.move_phases import MOVABLE

from capelin_cli.clusters.operations import (
    BEGINS,
    ControlPlaneOperation,
    Failure,
    check_awake,
    condition_of,
    operation,
)
from capelin_cli.environments.connection import ClusterName

_HINT = "Check whether the provider runs: capelin status."


async def move_cluster(which: ClusterName, within: float, *, check_only: bool) -> None:
    """Request a move, and print the next command. With `check_only`, leave no request."""
    async with operation(which, within) as (move, control_plane):
        await request_move(move, control_plane, check_only=check_only)
        if not check_only:
            move.conclusion.append(
                f"For an hour, a pause of cluster {which.name} stops its API, until it runs"
                f" elsewhere. Now run:\n  clusterctl move --namespace {which.namespace}"
                " --to-kubeconfig FILE"
            )


async def request_move(
    move: ControlPlaneOperation, control_plane: CapelinControlPlane, *, check_only: bool = False
) -> None:
    """Request a move, and wait until the provider has checked it.

    Raises:
        NotReadyError: it sleeps or is paused.
        UserError: the control plane cannot move. The request is withdrawn.
    """
    which = move.which
    if control_plane.spec.backend != "Pods":
        raise InvalidInputError(
            f"Control plane {control_plane.name} does not run on pods.",
            reason="On processes, a move needs no request.",
            hint="See the README of the control plane provider.",
        )
    check_awake(control_plane, which)
    if is_condition_true((control_plane.status or Status()).conditions, PAUSED):
        raise NotReadyError(
            f"Cluster {which.name} is paused.",
            reason="Either its move has begun, or its provider waits for the end of the pause.",
            hint="To continue a move, run clusterctl move again. Otherwise, end the pause first.",
        )

    async def refuse(_: CapelinControlPlane, failure: str) -> None:
        raise UserError(
            f"Cluster {which.name} cannot move.",
            reason=f"{failure}.",
            hint=f"Change that, and run {which.command('move')} again.",
        )

    is_accepted = False
    try:
        request = await move.request(MOVE_ANNOTATION)
        await move.follow(
            f"control plane of cluster {which.name} can move",
            lambda found: _unmovable(found, request),
            of="the provider's check",
            on_failure=refuse,
            hint=_HINT,
        )
        is_accepted = True
    finally:
        if check_only or not is_accepted:
            with suppress(NotFound):
                await move.annotate(MOVE_ANNOTATION, None)


def _unmovable(control_plane: CapelinControlPlane, request: str) -> str | Failure | None:
    """Why to wait. None if the control plane can move."""
    condition = condition_of(control_plane, MOVABLE)
    if condition is None or condition.reason == str(Reason.MOVE_NOT_REQUESTED):
        return BEGINS
    if condition.status != "True":
        return Failure(condition.message)
    # The condition may be that of an earlier request.
    status = control_plane.status or Status()
    return None if status.accepted_move == request else "the provider checks the request"
