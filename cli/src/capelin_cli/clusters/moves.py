"""Checks and requests the move of a control plane, before `clusterctl move`."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from capelin.api import Condition
from capelin.client import Client, NotFound
from capelin.contract import PAUSED, find_condition, is_condition_true
from capelin.errors import InvalidInputError, NotReadyError, UserError
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.control_plane import MOVE_ANNOTATION
from capelin_control_plane.operations.move_phases import MOVABLE
from rich.console import Console

from capelin_cli.clusters.backups import Persistent, check_awake, find_control_plane
from capelin_cli.clusters.cluster_verbs import ClusterName
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.waiting import wait_for


async def move_cluster(which: ClusterName, within: float, *, check_only: bool) -> None:
    """Request a move, and print the next command. With `check_only`, leave no request."""
    title = f"control plane of cluster {which.name} can move"
    async with which.client() as client:
        with Checklist(Console()).shown() as checklist, checklist.step(title) as line:
            await request_move(
                client, which, within, checklist.showing(line), check_only=check_only
            )
            line.detail = ""
    if check_only:
        return
    Console().print(
        f"For an hour, a pause of cluster {which.name} stops its API, until it runs elsewhere. Now"
        f" run:\n  clusterctl move --namespace {which.namespace} --to-kubeconfig FILE",
        soft_wrap=True,
        highlight=False,
    )


async def request_move(
    client: Client,
    which: ClusterName,
    within: float,
    show: Callable[[str], None],
    *,
    check_only: bool = False,
) -> None:
    """Request a move, and wait until the provider has checked it.

    Raises:
        NotReadyError: it sleeps or is paused.
        UserError: the control plane cannot move. The request is withdrawn.
    """
    found = await find_control_plane(client, which)
    if found.spec.backend != "Pods":
        raise InvalidInputError(
            f"Control plane {found.name} does not run on pods.",
            reason="On processes, a move needs no request.",
            hint="See the README of the control plane provider.",
        )
    check_awake(found, which)
    if is_condition_true((found.status or Status()).conditions, PAUSED):
        raise NotReadyError(
            f"Cluster {which.name} is paused.",
            reason="Either its move has begun, or its provider waits for the end of the pause.",
            hint="To continue a move, run clusterctl move again. Otherwise, end the pause first.",
        )
    request = _Request(client, found.name, which)
    is_accepted = False
    hint = "Check whether the provider runs: capelin status."
    try:
        await request.annotate(request.value)
        await wait_for("the provider's check", request.reason, within, show, hint)
        is_accepted = True
    finally:
        if check_only or not is_accepted:
            with suppress(NotFound):
                await request.annotate(None)


@dataclass(slots=True)
class _Request:
    client: Client
    control_plane: str
    which: ClusterName
    value: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    failing: Persistent = field(default_factory=Persistent)

    async def annotate(self, value: str | None) -> None:
        patch = {"metadata": {"annotations": {MOVE_ANNOTATION: value}}}
        await self.client.patch(
            CapelinControlPlane, self.control_plane, self.which.namespace, patch
        )

    async def reason(self) -> str | None:
        """Why to wait. None if the control plane can move."""
        found = await self.client.get(CapelinControlPlane, self.control_plane, self.which.namespace)
        status = found.status or Status()
        condition = find_condition(status.conditions, MOVABLE)
        if condition is None or condition.reason == str(Reason.MOVE_NOT_REQUESTED):
            return "the provider begins"
        if condition.status == "True":
            # The condition may be that of an earlier request.
            is_accepted = status.accepted_move == self.value
            return None if is_accepted else "the provider checks the request"
        # A failure of an earlier request disappears within seconds.
        if self.failing.stays(f"{condition.reason}: {condition.message}"):
            raise self.refused(condition)
        return condition.message

    def refused(self, condition: Condition) -> UserError:
        return UserError(
            f"Cluster {self.which.name} cannot move.",
            reason=f"{condition.message}.",
            hint=f"Change that, and run {self.which.command('move')} again.",
        )
