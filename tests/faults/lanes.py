"""Lanes of a campaign: sequential faults in one subject, and changes at the same time."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Generic, TypeVar

from capelin_control_plane.desired.control_plane import RENEW_ANNOTATION
from capelin_embedded.binaries import TESTED_KUBERNETES

from tests.faults.catalog import Fault
from tests.faults.report import Journal, Report
from tests.faults.world import UNREACHABLE, ClusterUnderTest

T = TypeVar("T")

RECOVERY_LIMIT = 240.0
"""Seconds after which a fault counts as not recovered."""
_POLL_SECONDS = 1.0
_ATTEMPT_SECONDS = 15.0

Action = Callable[[], Awaitable[object]]
Question = Callable[[], Awaitable[bool]]


@dataclass
class Lane(Generic[T]):
    """Sequential faults, each after the recovery from the last one."""

    name: str
    subject: T
    faults: Sequence[Fault[T]]
    random: Random
    is_well: Question
    during: Action | None = None
    """An action during each fault."""
    check: Action | None = None
    """A check after each recovery."""

    async def run(self, journal: Journal, end: float) -> None:
        """Inject as many faults as possible in time. A broken promise does not end the campaign."""
        for number, fault in enumerate(self.faults, 1):
            if time.monotonic() > end:
                return
            where = f"{self.name} {number}, {fault.name}"
            journal.began(self.name, fault.name)
            began = time.monotonic()
            actions = [fault.inject(self.subject, self.random)]
            if self.during is not None:
                actions.append(_awaited(self.during))
            for error in await asyncio.gather(*actions, return_exceptions=True):
                if error is not None:
                    journal.problem(f"{where}: {error!r}")
            recovered = await _recovered(self.is_well, RECOVERY_LIMIT)
            journal.ended(self.name, number, time.monotonic() - began if recovered else None)
            if not recovered:
                journal.problem(f"{where}: no recovery in {RECOVERY_LIMIT:g} s")
                if not await _recovered(self.is_well, RECOVERY_LIMIT):
                    journal.problem(f"{self.name}: given up")
                    return
            if self.check is not None:
                try:
                    await until_done(self.check)
                except (AssertionError, TimeoutError) as error:
                    journal.problem(f"{where}: {error!r}")


async def _awaited(action: Action) -> None:
    await action()


async def _recovered(is_well: Question, limit: float) -> bool:
    """Wait until two consecutive checks succeed."""
    well = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(limit):
            while well < 2:
                well = well + 1 if await is_well() else 0
                await asyncio.sleep(_POLL_SECONDS)
            return True
    return False


@dataclass
class Canary:
    """A cluster that changes during each fault of the management cluster.

    The recovered controllers must apply the changes: an annotation of the topology for the control
    plane, and another number of machines, which become Nodes or are deleted.
    """

    cluster: ClusterUnderTest
    report: Report

    async def change(self) -> None:
        """Request a change until the API server accepts it."""
        self.report.changes += 1
        annotations = {"canary.example.com/change": f"{self.report.changes}"}
        workers = 1 + self.report.changes % 2
        topology: dict[str, object] = {"controlPlane": {"metadata": {"annotations": annotations}}}
        await until_done(lambda: self.cluster.patch_topology(topology))
        await until_done(lambda: self.cluster.scale_workers(workers))

    async def is_well(self) -> bool:
        with suppress(*UNREACHABLE):
            found = await self.cluster.control_plane()
            change = found and found.metadata.annotations.get("canary.example.com/change")
            return change == f"{self.report.changes}" and await self.cluster.is_well(nodes=True)
        return False


@dataclass
class Churn:
    """A cluster that is created, scaled, upgraded, renewed and deleted repeatedly."""

    cluster: ClusterUnderTest
    report: Report
    steps: int = 0
    step_at_fault: int = 0

    async def run(self) -> None:
        """Change it until cancelled, regardless of faults."""
        old, new = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
        cluster = self.cluster
        while True:
            cluster.api_servers = 1
            await self._step(lambda: cluster.create(old), lambda: cluster.is_settled(version=old))
            cluster.api_servers = 2
            replicas: dict[str, object] = {"controlPlane": {"replicas": 2}}
            await self._step(
                lambda replicas=replicas: cluster.patch_topology(replicas),
                lambda: cluster.is_settled(version=old),
            )
            await self._step(
                lambda: cluster.patch_topology({"version": new}),
                lambda: cluster.is_settled(version=new),
            )
            renewal = datetime.now(UTC).isoformat()
            await self._step(
                lambda renewal=renewal: cluster.annotate(RENEW_ANNOTATION, renewal),
                lambda: cluster.is_settled(version=new),
            )
            await self._step(cluster.delete, cluster.is_gone)
            self.report.churned += 1

    async def _step(self, action: Action, question: Question) -> None:
        # The lane reports a step that takes too long.
        await until_done(action, within=None)
        await until(question, within=None)
        self.steps += 1

    async def begin(self) -> None:
        """Remember the step in which a fault was injected."""
        self.step_at_fault = self.steps

    async def is_well(self) -> bool:
        return self.steps > self.step_at_fault


async def until_done(action: Action, *, within: float | None = RECOVERY_LIMIT) -> None:
    """Repeat an action until it succeeds.

    Raises:
        TimeoutError: it was never done.
    """
    async with asyncio.timeout(within):
        while True:
            try:
                async with asyncio.timeout(_ATTEMPT_SECONDS):
                    await action()
            except UNREACHABLE as error:
                reason = getattr(error, "reason", "")
                if reason == "BadRequest":
                    # A defect of the campaign, not of the clusters.
                    raise
                if reason in {"AlreadyExists", "NotFound"}:
                    return
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return


async def until(question: Question, *, within: float | None = RECOVERY_LIMIT) -> None:
    """Wait until a condition is met.

    Raises:
        TimeoutError: it never was.
    """
    async with asyncio.timeout(within):
        while True:
            with suppress(*UNREACHABLE):
                async with asyncio.timeout(_ATTEMPT_SECONDS):
                    if await question():
                        return
            await asyncio.sleep(_POLL_SECONDS)
