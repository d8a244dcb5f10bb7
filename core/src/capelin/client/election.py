"""Elects one of several processes by a Lease, as client-go's leader elector does."""

import asyncio
import logging
import random
import socket
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any, TypeVar

from capelin.api.views.core import Lease, LeaseSpec
from capelin.client.client import Client
from capelin.client.errors import AlreadyExists, ClientError, Conflict, NotFound

log = logging.getLogger(__name__)

T = TypeVar("T")


class LeadershipLost(ClientError):  # noqa: N818 - it is what happened
    """Somebody else may lead now: whatever the leader did has been stopped."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The rhythm of an election in seconds; the defaults are client-go's."""

    lease: float = 15
    """How long the others wait for a leader that is silent."""
    renew: float = 10
    """How long a leader that cannot renew goes on."""
    retry: float = 2
    """The pause between two tries."""

    def __post_init__(self) -> None:
        if not self.lease > self.renew > self.retry * _JITTER > 0:
            raise ValueError(
                f"a lease of {self.lease:g} s has to be longer than the renew deadline of "
                f"{self.renew:g} s, and that than {_JITTER:g} times the retry period of "
                f"{self.retry:g} s"
            )


_JITTER = 1.2


@dataclass(frozen=True, slots=True)
class Observed:
    """What a lease said when it was last looked at, and since when it has said so."""

    spec: LeaseSpec
    version: str
    since: float
    """By our own clock: the holder's may be wrong."""


def observed(before: Observed | None, lease: Lease, now: float) -> Observed:
    """What is known after a look at the lease."""
    same = before is not None and before.spec == lease.spec
    since = before.since if before is not None and same else now
    return Observed(lease.spec, lease.metadata.resource_version, since)


def may_lead(seen: Observed, me: str, now: float) -> bool:
    """Whether the lease is ours, or nobody's, or its holder has been silent for too long."""
    holder = seen.spec.holder_identity
    return not holder or holder == me or now >= seen.since + (seen.spec.lease_duration_seconds or 0)


def claim(seen: Observed | None, me: str, seconds: float, now: datetime) -> LeaseSpec:
    """What the lease shall say when we take it, or go on holding it."""
    if seen is not None and seen.spec.holder_identity == me:
        return seen.spec.model_copy(
            update={"renew_time": now, "lease_duration_seconds": ceil(seconds)}
        )
    return LeaseSpec(
        holder_identity=me,
        lease_duration_seconds=ceil(seconds),
        acquire_time=now,
        renew_time=now,
        lease_transitions=0 if seen is None else (seen.spec.lease_transitions or 0) + 1,
    )


def release(seen: Observed, now: datetime) -> LeaseSpec:
    """What the lease shall say so that somebody else can take it at once."""
    return LeaseSpec(
        holder_identity="",
        lease_duration_seconds=1,
        acquire_time=now,
        renew_time=now,
        lease_transitions=seen.spec.lease_transitions,
    )


class LeaderElection:
    """Runs something in at most one of the processes that use the same lease.

    Args:
        client: reads and writes the lease.
        name: the lease's name, the same for all.
        namespace: where it is.
        identity: who we are; a name that no other process has, if not given.
        timing: the rhythm.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        *,
        identity: str | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.identity = identity or f"{socket.gethostname()}_{uuid.uuid4()}"
        self._client = client
        self._name = name
        self._namespace = namespace
        self._timing = timing or Timing()
        self._seen: Observed | None = None
        self._leading = False

    @property
    def is_leader(self) -> bool:
        """Whether we lead now."""
        return self._leading

    @property
    def leader(self) -> str | None:
        """Who led when we last looked."""
        return self._seen.spec.holder_identity if self._seen is not None else None

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait to be elected, then do the work; give the lease back when it has ended.

        Cancelling this cancels the work, and the lease is held until the work has stopped.

        Raises:
            LeadershipLost: the lease could not be renewed in time; the work was cancelled.
        """
        await self._acquire()
        log.info("Leading: %s holds the lease %s/%s", self.identity, self._namespace, self._name)
        doing = asyncio.create_task(work())
        keeping = asyncio.create_task(self._keep())
        try:
            await asyncio.wait({doing, keeping}, return_when=asyncio.FIRST_COMPLETED)
            lost = not doing.done()
        finally:
            doing.cancel()
            await asyncio.wait({doing})
            keeping.cancel()
            await asyncio.wait({keeping})
            if self._leading:
                await self._release()
        if lost:
            raise LeadershipLost(
                f"{self.identity} could not renew the lease {self._namespace}/{self._name} "
                f"within {self._timing.renew:g} s, so that another may lead"
            )
        return doing.result()

    async def _acquire(self) -> None:
        waiting_for: str | None = None
        while not await self._attempt(time.monotonic() + self._timing.renew):
            if self.leader != waiting_for:
                waiting_for = self.leader
                log.info(
                    "Waiting: %s holds the lease %s/%s", waiting_for, self._namespace, self._name
                )
            await asyncio.sleep(self._timing.retry * (1 + random.random() * _JITTER))  # noqa: S311
        self._leading = True

    async def _keep(self) -> None:
        """Renew until that fails for too long."""
        renewed = time.monotonic()
        while self._leading:
            deadline = renewed + self._timing.renew
            await asyncio.sleep(min(self._timing.retry, deadline - time.monotonic()))
            began = time.monotonic()
            if began < deadline and await self._attempt(deadline):
                renewed = began
            elif time.monotonic() >= deadline or self.leader not in {self.identity, None, ""}:
                self._leading = False

    async def _attempt(self, deadline: float) -> bool:
        """Try once to take or to renew the lease; say whether it is ours."""
        try:
            async with asyncio.timeout(max(0, deadline - time.monotonic())):
                return await self._take()
        except (ClientError, TimeoutError) as error:
            log.warning(
                "The lease %s/%s cannot be had now: %s",
                self._namespace,
                self._name,
                str(error) or "no answer in time",
            )
            return False

    async def _take(self) -> bool:
        # What was seen is usually still so: one request less for every renewal.
        if self._seen is None or self._seen.spec.holder_identity != self.identity:
            await self._look()
        for _ in range(2):
            if self._seen is not None and not may_lead(self._seen, self.identity, time.monotonic()):
                return False
            try:
                await self._write(
                    claim(self._seen, self.identity, self._timing.lease, datetime.now(UTC))
                )
            except (AlreadyExists, Conflict, NotFound):
                # Somebody wrote, or deleted it: look who leads now.
                await self._look()
            else:
                return True
        return False

    async def _look(self) -> None:
        lease = await self._client.find(Lease, self._name, self._namespace)
        now = time.monotonic()
        self._seen = observed(self._seen, lease, now) if lease is not None else None

    async def _write(self, spec: LeaseSpec) -> None:
        if self._seen is None:
            made = Lease.of(self._name, self._namespace, spec=spec)
            lease = await self._client.create(made)
        else:
            lease = await self._client.patch(
                Lease,
                self._name,
                self._namespace,
                {
                    "metadata": {"resourceVersion": self._seen.version},
                    "spec": spec.dump(),
                },
            )
        self._seen = observed(None, lease, time.monotonic())

    async def _release(self) -> None:
        self._leading = False
        try:
            async with asyncio.timeout(self._timing.renew):
                if self._seen is not None:
                    await self._write(release(self._seen, datetime.now(UTC)))
        except (ClientError, TimeoutError) as error:
            log.warning(
                "The lease %s/%s could not be given back, and runs out by itself: %s",
                self._namespace,
                self._name,
                str(error) or "no answer in time",
            )
