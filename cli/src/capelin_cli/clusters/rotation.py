"""Rotates a cluster's CAs and its service account key. Its provider does the work."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from capelin.api import Condition
from capelin.client import Client
from capelin.contract import find_condition
from capelin.errors import MissingError, UserError
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.operations.rotation import DROP_ANNOTATION, ROTATE_ANNOTATION, ROTATING
from rich.console import Console

from capelin_cli.clusters.backups import Persistent, check_awake, find_control_plane
from capelin_cli.clusters.cluster_verbs import ClusterName
from capelin_cli.status.readiness import follow_until_ready
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.waiting import wait_for

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
    async with which.client() as client:
        control_plane = await find_control_plane(client, which)
        check_awake(control_plane, which)
        rotation = _Rotation(client, which, control_plane.name)
        console = Console()
        if not is_in_progress(rotating_condition(control_plane)):
            await rotation.annotate(ROTATE_ANNOTATION, datetime.now(UTC).isoformat())
        with Checklist(console).shown() as checklist:
            title = f"components of cluster {which.name} use new CAs and keys"
            with checklist.step(title) as line:
                await wait_for(
                    "the rotation", rotation.begun(), within, checklist.showing(line), _HINT
                )
                line.detail = ""
            if drop is None:
                rotation.print_clients(console)
                return
            await rotation.annotate(DROP_ANNOTATION, drop.annotation(datetime.now(UTC)))
            with checklist.step(f"old CAs and keys of cluster {which.name} dropped") as line:
                await wait_for("the clients", rotation.over, within, checklist.showing(line), _HINT)
                line.detail = ""
            await follow_until_ready(
                checklist,
                client,
                which.name,
                which.namespace,
                within,
                title=f"cluster {which.name} ready",
            )
        console.print(_FILES, soft_wrap=True)


def rotating_condition(control_plane: CapelinControlPlane) -> Condition | None:
    """The condition of a rotation."""
    return find_condition((control_plane.status or Status()).conditions, ROTATING)


def is_in_progress(condition: Condition | None) -> bool:
    """Whether a rotation has begun. Another request would begin one more after its end."""
    return condition is not None and condition.status == "True"


@dataclass(slots=True)
class _Rotation:
    client: Client
    which: ClusterName
    control_plane: str
    clients: str = ""
    """The condition's list of clients that need the old CAs."""

    async def annotate(self, annotation: str, value: str | None) -> None:
        patch = {"metadata": {"annotations": {annotation: value}}}
        await self.client.patch(
            CapelinControlPlane, self.control_plane, self.which.namespace, patch
        )

    async def condition(self) -> Condition | None:
        found = await self.client.find(
            CapelinControlPlane, self.control_plane, self.which.namespace
        )
        if found is None:
            raise MissingError(
                f"The control plane of cluster {self.which.name} does not exist any more.",
                hint="See capelin status.",
            )
        return rotating_condition(found)

    def begun(self) -> Callable[[], Awaitable[str | None]]:
        failing = Persistent()

        async def reason() -> str | None:
            condition = await self.condition()
            if condition is None:
                return "the provider begins"
            if condition.reason == str(Reason.WAITING_FOR_CLIENTS):
                self.clients = condition.message
                return None
            is_refused = condition.reason == str(Reason.ROTATION_REFUSED)
            if failing.stays(condition.message if is_refused else None):
                await self.annotate(ROTATE_ANNOTATION, None)
                raise UserError(
                    f"The CAs of cluster {self.which.name} cannot be rotated.",
                    reason=f"{condition.message}.",
                    hint="Nothing was changed. The documentation's page on rotation has more.",
                )
            return condition.message

        return reason

    async def over(self) -> str | None:
        condition = await self.condition()
        return condition and condition.message

    def print_clients(self, console: Console) -> None:
        console.print(f"{self.clients}.", soft_wrap=True)
        command = self.which.command("rotate", "--drop")
        console.print(f"When these clients are ready: {command}", soft_wrap=True)
