"""How a verb requests an operation of a control plane, follows it, and reports its end.

The provider does the work, so an interrupted command loses nothing. The condition of an operation
may still be that of an earlier request: a failure counts when it stays.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from capelin.api import Condition
from capelin.client import Client, NotFound
from capelin.contract import ASLEEP, AVAILABLE, PAUSED, find_condition, is_condition_true, named_by
from capelin.errors import InvalidInputError, MissingError, NotReadyError, UserError
from capelin_control_plane.api import CapelinControlPlane, Status
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.control_plane import MOVE_ANNOTATION
from capelin_control_plane.operations.move_phases import MOVABLE
from capelin_control_plane.operations.rotation import DROP_ANNOTATION, ROTATE_ANNOTATION, ROTATING
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION
from rich.console import Console

from capelin_cli.environments.connection import ClusterName
from capelin_cli.environments.kubeconfigs import find_cluster
from capelin_cli.status.readiness import follow_until_ready
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.text import as_invoked
from capelin_cli.terminal.waiting import wait_for

CONTINUES: Final = "The provider continues: see capelin status."
BEGINS: Final = "the provider begins"
FAILURE_SECONDS: Final = 5.0
"""A condition that shows a failure for this long is not the one of an earlier request."""

Progress = Callable[[CapelinControlPlane], "str | Failure | None"]
"""Why the operation is not done yet, from the present object. None if it is done."""


class Failure(str):
    """A reason to wait that ends the wait when it stays."""

    __slots__ = ()


class OperationFailedError(UserError):
    """The provider cannot do what was requested, and has reported that for a while."""


class Persistent:
    """Notices a failure that stays."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._failure: str | None = None

    def stays(self, failure: str | None) -> bool:
        """Whether the same failure has been shown for a while."""
        if failure != self._failure:
            self._failure, self._since = failure, self._clock()
        return failure is not None and self._clock() - self._since >= FAILURE_SECONDS


@dataclass(slots=True)
class ControlPlaneOperation:
    """An operation of the control plane of a Cluster, from the request to its end."""

    client: Client
    which: ClusterName
    within: float
    """Seconds to wait for each step."""
    control_plane: str
    checklist: Checklist
    conclusion: list[str] = field(default_factory=list[str])
    """What to print below the steps."""

    async def annotate(self, annotation: str, value: str | None) -> None:
        """Write a request, or with None withdraw it."""
        patch = {"metadata": {"annotations": {annotation: value}}}
        name, namespace = self.control_plane, self.which.namespace
        await self.client.patch(CapelinControlPlane, name, namespace, patch)

    async def request(self, annotation: str) -> str:
        """Request an operation now. Returns the value of the annotation."""
        value = datetime.now(UTC).isoformat()
        await self.annotate(annotation, value)
        return value

    async def read(self) -> CapelinControlPlane:
        """The control plane as it is now."""
        found = await self.client.find(
            CapelinControlPlane, self.control_plane, self.which.namespace
        )
        if found is None:
            raise MissingError(
                f"The control plane of cluster {self.which.name} does not exist any more.",
                hint="See capelin status.",
            )
        return found

    async def follow(
        self,
        title: str,
        progress: Progress,
        *,
        of: str,
        failure: str = "",
        advice: str = "",
        hint: str = CONTINUES,
        done: Callable[[CapelinControlPlane], str] = lambda _: "",
    ) -> None:
        """Show a step until the operation is done.

        Args:
            title: The step when it is done.
            progress: Why it is not done yet.
            of: The operation, in the error of a timeout.
            failure: The error for a failure that stays.
            advice: The next step after a failure.
            hint: The next step after a timeout.
            done: A detail to show when it is done.

        Raises:
            OperationFailedError: A failure stays.
        """
        failing, detail = Persistent(), ""

        async def reason() -> str | None:
            nonlocal detail
            found = await self.read()
            state = progress(found)
            detail = done(found) if state is None else ""
            if failing.stays(state if isinstance(state, Failure) else None):
                raise OperationFailedError(failure, reason=f"{state}.", hint=advice)
            return state

        with self.checklist.step(title) as line:
            await wait_for(of, reason, self.within, self.checklist.showing(line), hint)
            line.detail = detail

    async def follow_until_ready(self) -> None:
        """Show a step until the whole Cluster is ready."""
        name, namespace = self.which.name, self.which.namespace
        await follow_until_ready(self.checklist, self.client, name, namespace, self.within)


@asynccontextmanager
async def operation(
    which: ClusterName, within: float
) -> AsyncGenerator[tuple[ControlPlaneOperation, CapelinControlPlane]]:
    """An operation of a Cluster's control plane, and that control plane before it."""
    async with which.client() as client:
        found = await find_control_plane(client, which)
        console = Console()
        with Checklist(console).shown() as checklist:
            begun = ControlPlaneOperation(client, which, within, found.name, checklist)
            yield begun, found
        for text in begun.conclusion:
            console.print(as_invoked(text), soft_wrap=True, highlight=False, markup=False)


async def find_control_plane(client: Client, which: ClusterName) -> CapelinControlPlane:
    """The control plane of a Cluster."""
    cluster = await find_cluster(client, which.name, which.namespace)
    name = named_by(cluster.spec.control_plane_ref, CapelinControlPlane)
    if name is None:
        raise InvalidInputError(
            f"Cluster {which.name} has no {CapelinControlPlane.resource.kind}.",
            hint="Use the tools of its control plane's provider.",
        )
    return await client.get(CapelinControlPlane, name, which.namespace)


def condition_of(control_plane: CapelinControlPlane, type_: str) -> Condition | None:
    """A condition of a control plane."""
    return find_condition((control_plane.status or Status()).conditions, type_)


def check_awake(control_plane: CapelinControlPlane, which: ClusterName) -> None:
    """Check that the provider can begin the work on a control plane.

    Raises:
        NotReadyError: it sleeps.
    """
    if is_condition_true((control_plane.status or Status()).conditions, ASLEEP):
        raise NotReadyError(
            f"Cluster {which.name} sleeps.",
            reason="None of its components runs.",
            hint=f"Wake it first: {which.command('wake')}.",
        )


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
        OperationFailedError: the control plane cannot move. The request is withdrawn.
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
    is_accepted = False
    try:
        request = await move.request(MOVE_ANNOTATION)
        await move.follow(
            f"control plane of cluster {which.name} can move",
            lambda found: _unmovable(found, request),
            of="the provider's check",
            failure=f"Cluster {which.name} cannot move.",
            advice=f"Change that, and run {which.command('move')} again.",
            hint="Check whether the provider runs: capelin status.",
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
    hint = "The provider continues: run the command again, or see capelin status."
    async with operation(which, within) as (rotation, control_plane):
        check_awake(control_plane, which)
        if not is_in_progress(condition_of(control_plane, ROTATING)):
            await rotation.request(ROTATE_ANNOTATION)
        try:
            await rotation.follow(
                f"components of cluster {which.name} use new CAs and keys",
                _unused,
                of="the rotation",
                failure=f"The CAs of cluster {which.name} cannot be rotated.",
                advice="Nothing was changed. The documentation's page on rotation has more.",
                hint=hint,
            )
        except OperationFailedError:
            await rotation.annotate(ROTATE_ANNOTATION, None)
            raise
        if drop is None:
            clients = condition_of(await rotation.read(), ROTATING)
            rotation.conclusion += [f"{clients.message}."] if clients else []
            command = which.command("rotate", "--drop")
            rotation.conclusion.append(f"When these clients are ready: {command}")
            return
        await rotation.annotate(DROP_ANNOTATION, drop.annotation(datetime.now(UTC)))
        title = f"old CAs and keys of cluster {which.name} dropped"

        def remaining(found: CapelinControlPlane) -> str | None:
            condition = condition_of(found, ROTATING)
            return condition and condition.message

        await rotation.follow(title, remaining, of="the clients", hint=hint)
        await rotation.follow_until_ready()
        rotation.conclusion.append(
            "Nodes that joined before still trust the old CA in their files. The documentation's"
            " page on rotation has the commands that replace them."
        )


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
