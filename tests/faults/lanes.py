"""Lanes of a campaign: faults one after the other in one subject, and changes beside them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Generic, TypeVar

from capelin.embedded.binaries import TESTED_KUBERNETES
from capelin_control_plane.desired import RENEW_ANNOTATION

from tests.faults.catalog import Fault
from tests.faults.report import Journal, Report
from tests.faults.world import UNREACHABLE, ClusterUnderTest

T = TypeVar("T")

RECOVERY_LIMIT = 240.0
"""Seconds after which a fault counts as never recovered from."""
_POLL_SECONDS = 1.0
_ATTEMPT_SECONDS = 15.0

Action = Callable[[], Awaitable[object]]
Question = Callable[[], Awaitable[bool]]


@dataclass
class Lane(Generic[T]):
    """Faults one after the other, each once the last one is recovered from."""

    name: str
    subject: T
    faults: Sequence[Fault[T]]
    random: Random
    is_well: Question
    beside: Action | None = None
    """What is done while a fault is in force."""
    check: Action | None = None
    """What has to hold after each recovery."""

    async def run(self, journal: Journal, end: float) -> None:
        """Inject them all, or as many as there is time for. A broken promise ends no campaign."""
        for number, fault in enumerate(self.faults, 1):
            if time.monotonic() > end:
                return
            where = f"{self.name} {number}, {fault.name}"
            journal.began(self.name, fault.name)
            began = time.monotonic()
            actions = [fault.inject(self.subject, self.random)]
            if self.beside is not None:
                actions.append(_awaited(self.beside))
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
    """Wait until everything is well, twice in a row."""
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
    """A cluster that is changed during each fault of the management cluster.

    What recovered is what carries out changes again: the control plane gets an annotation from its
    topology, and the pool another number of machines, which become Nodes or go.
    """

    cluster: ClusterUnderTest
    report: Report

    async def change(self) -> None:
        """Ask for a change, however often that takes."""
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
    """A cluster that is created, scaled, upgraded, renewed and deleted, over and over."""

    cluster: ClusterUnderTest
    report: Report
    steps: int = 0
    seen: int = 0

    async def run(self) -> None:
        """Change it until cancelled, whatever is broken."""
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
        # The lane notices when a step takes too long.
        await until_done(action, within=None)
        await until(question, within=None)
        self.steps += 1

    async def begin(self) -> None:
        """Remember the step in which a fault was injected."""
        self.seen = self.steps

    async def is_well(self) -> bool:
        return self.steps > self.seen


async def until_done(action: Action, *, within: float | None = RECOVERY_LIMIT) -> None:
    """Do it, however often that takes.

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
                    # No fault of the clusters, but of the campaign.
                    raise
                if reason in {"AlreadyExists", "NotFound"}:
                    return
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return


async def until(question: Question, *, within: float | None = RECOVERY_LIMIT) -> None:
    """Wait until something is so.

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
