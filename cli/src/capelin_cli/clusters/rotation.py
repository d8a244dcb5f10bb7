"""Rotates a cluster's CAs and its service account key."""

from dataclasses import dataclass
from datetime import UTC, datetime

from capelin.api import Condition
from capelin.errors import UserError
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.operations.rotation import DROP_ANNOTATION, ROTATE_ANNOTATION, ROTATING

from capelin_cli.clusters.operations import (
    BEGINS,
    ControlPlaneOperation,
    Failure,
    check_awake,
    condition_of,
    operation,
)
from capelin_cli.environments.connection import ClusterName

_FILES = (
    "Nodes that joined before still trust the old CA in their files. The documentation's page on"
    " rotation has the commands that replace them."
)
_HINT = "The provider continues: run the command again, or see capelin status."


@dataclass(frozen=True, slots=True)
class Drop:
    """How to drop the old CAs and keys."""

    force: bool = False
    """Whether to drop them even if clients need them."""

    def annotation(self, now: datetime) -> str:
        """The annotation's value."""
        return f"{'force@' if self.force else ''}{now.isoformat()}"


async def rotate_cluster(which: ClusterName, drop: Drop | None, within: float) -> None:
    """Begin a rotation or continue one, and wait until only clients need the old CAs.

    Args:
        which: The cluster.
        drop: Whether and how to drop the old CAs then. Without it, this prints the clients.
        within: How long to wait, in seconds.
    """
    async with operation(which, within) as (rotation, control_plane):
        check_awake(control_plane, which)
        if not is_in_progress(condition_of(control_plane, ROTATING)):
            await rotation.request(ROTATE_ANNOTATION)

        async def refuse(_: CapelinControlPlane, failure: str) -> None:
            await rotation.annotate(ROTATE_ANNOTATION, None)
            raise UserError(
                f"The CAs of cluster {which.name} cannot be rotated.",
                reason=f"{failure}.",
                hint="Nothing was changed. The documentation's page on rotation has more.",
            )

        title = f"components of cluster {which.name} use new CAs and keys"
        await rotation.follow(title, _unused, of="the rotation", on_failure=refuse, hint=_HINT)
        if drop is None:
            await _print_clients(rotation)
            return
        await rotation.annotate(DROP_ANNOTATION, drop.annotation(datetime.now(UTC)))
        title = f"old CAs and keys of cluster {which.name} dropped"
        await rotation.follow(title, _dropped, of="the clients", hint=_HINT)
        await rotation.follow_until_ready()
        rotation.conclusion.append(_FILES)


def is_in_progress(condition: Condition | None) -> bool:
    """Whether a rotation has begun. Another request would begin one more after its end."""
    return condition is not None and condition.status == "True"


def _unused(control_plane: CapelinControlPlane) -> str | Failure | None:
    """Why components still use old CAs and keys."""
    condition = condition_of(control_plane, ROTATING)
    if condition is None:
        return BEGINS
    if condition.reason == str(Reason.ROTATION_REFUSED):
        return Failure(condition.message)
    is_done = condition.reason == str(Reason.WAITING_FOR_CLIENTS)
    return None if is_done else condition.message


def _dropped(control_plane: CapelinControlPlane) -> str | None:
    condition = condition_of(control_plane, ROTATING)
    return condition and condition.message


async def _print_clients(rotation: ControlPlaneOperation) -> None:
    """Print the clients that need the old CAs."""
    condition = condition_of(await rotation.read(), ROTATING)
    if condition is not None:
        rotation.conclusion.append(f"{condition.message}.")
    command = rotation.which.command("rotate", "--drop")
    rotation.conclusion.append(f"When these clients are ready: {command}")
