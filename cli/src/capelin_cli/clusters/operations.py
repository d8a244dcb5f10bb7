"""How a verb requests an operation of a control plane, follows it, and reports its end.

The provider does the work, so an interrupted command loses nothing. The condition of an operation
may still be that of an earlier request: a failure counts when it stays.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from capelin.api import Condition
from capelin.client import Client
from capelin.contract import ASLEEP, find_condition, is_condition_true, named_by
from capelin.errors import InvalidInputError, MissingError, NotReadyError
from capelin_control_plane.api import CapelinControlPlane, Status
from rich.console import Console

from capelin_cli.environments.connection import ClusterName
from capelin_cli.environments.kubeconfigs import find_cluster
from capelin_cli.status.readiness import follow_until_ready
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.invocation import as_invoked
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
        on_failure: Callable[[CapelinControlPlane, str], Awaitable[None]] | None = None,
        hint: str = CONTINUES,
        done: Callable[[CapelinControlPlane], str] = lambda _: "",
    ) -> None:
        """Show a step until the operation is done.

        Args:
            title: The step when it is done.
            progress: Why it is not done yet.
            of: The operation, in the error of a timeout.
            on_failure: Raises the error for a failure that stays.
            hint: The next step after a timeout.
            done: A detail to show when it is done.
        """
        failing, detail = Persistent(), ""

        async def reason() -> str | None:
            nonlocal detail
            found = await self.read()
            state = progress(found)
            detail = done(found) if state is None else ""
            failure = state if isinstance(state, Failure) else None
            if failing.stays(failure) and failure is not None and on_failure is not None:
                await on_failure(found, failure)
            return state

        with self.checklist.step(title) as line:
            await wait_for(of, reason, self.within, self.checklist.showing(line), hint)
            line.detail = detail

    async def follow_until_ready(self) -> None:
        """Show a step until the whole Cluster is ready."""
        name, namespace = self.which.name, self.which.namespace
        title = f"cluster {name} ready"
        await follow_until_ready(
            self.checklist, self.client, name, namespace, self.within, title=title
        )


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
