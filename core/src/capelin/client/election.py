"""Leader election with a Lease, like client-go's."""

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

from capelin.api.core import Lease, LeaseSpec
from capelin.client.client import Client
from capelin.client.errors import AlreadyExists, ClientError, Conflict, NotFound

log = logging.getLogger(__name__)

T = TypeVar("T")


class LeadershipLost(ClientError):  # noqa: N818 - named like the other errors
    """Another process may lead now. The work is cancelled."""


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    """Durations of leader election in seconds. The defaults are client-go's."""

    lease: float = 15
    """The validity of a lease without renewal (LeaseDuration)."""
    renew: float = 10
    """The time that a leader continues to work if it cannot renew (RenewDeadline)."""
    retry: float = 2
    """Time between two attempts (RetryPeriod)."""

    def __post_init__(self) -> None:
        if not self.lease > self.renew > self.retry * _JITTER > 0:
            raise ValueError(
                f"a lease of {self.lease:g} s must be longer than the renew deadline of "
                f"{self.renew:g} s, and that longer than {_JITTER:g} times the retry period of "
                f"{self.retry:g} s"
            )


_JITTER = 1.2


@dataclass(frozen=True, slots=True)
class Observed:
    """A lease when it was last read, and the time since its last change."""

    spec: LeaseSpec
    version: str
    since: float
    """By our own clock: the holder's may be wrong."""


def observed(before: Observed | None, lease: Lease, now: float) -> Observed:
    same = before is not None and before.spec == lease.spec
    since = before.since if before is not None and same else now
    return Observed(lease.spec, lease.metadata.resource_version, since)


def may_lead(lease: Observed, me: str, now: float) -> bool:
    """Whether we hold the lease, it is free, or its holder did not renew it in time."""
    holder = lease.spec.holder_identity
    return (
        not holder or holder == me or now >= lease.since + (lease.spec.lease_duration_seconds or 0)
    )


def claim(lease: Observed | None, me: str, seconds: float, now: datetime) -> LeaseSpec:
    """The spec that takes or renews the lease."""
    if lease is not None and lease.spec.holder_identity == me:
        return lease.spec.model_copy(
            update={"renew_time": now, "lease_duration_seconds": ceil(seconds)}
        )
    return LeaseSpec(
        holder_identity=me,
        lease_duration_seconds=ceil(seconds),
        acquire_time=now,
        renew_time=now,
        lease_transitions=0 if lease is None else (lease.spec.lease_transitions or 0) + 1,
    )


def release(lease: Observed, now: datetime) -> LeaseSpec:
    """The spec that lets another process take the lease at once."""
    return LeaseSpec(
        holder_identity="",
        lease_duration_seconds=1,
        acquire_time=now,
        renew_time=now,
        lease_transitions=lease.spec.lease_transitions,
    )


class LeaderElection:
    """Runs work in at most one of the processes that use the same lease.

    Args:
        client: Reads and writes the lease.
        name: The name of the lease.
        namespace: Its namespace.
        identity: Our name in the lease. The default is unique per process.
        timing: Durations.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        *,
        identity: str | None = None,
        timing: ElectionTiming | None = None,
    ) -> None:
        self.identity = identity or f"{socket.gethostname()}_{uuid.uuid4()}"
        self._client = client
        self._name = name
        self._namespace = namespace
        self._timing = timing or ElectionTiming()
        self._observed: Observed | None = None
        self._leading = False
        self.renewed_at: float | None = None
        """The start of the last renewal by `time.monotonic`, while we lead."""

    @property
    def is_leader(self) -> bool:
        return self._leading

    @property
    def leader(self) -> str | None:
        """The holder of the lease when we last read it."""
        return self._observed.spec.holder_identity if self._observed is not None else None

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait until elected, run the work, and release the lease after it.

        Cancelling this cancels the work. We hold the lease until the work has stopped.

        Raises:
            LeadershipLost: We could not renew the lease in time and cancelled the work.
        """
        await self._acquire()
        log.info("Leading: %s holds the lease %s/%s", self.identity, self._namespace, self._name)
        working = asyncio.create_task(work())
        renewing = asyncio.create_task(self._renew())
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            lost = not working.done()
        finally:
            working.cancel()
            await asyncio.wait({working})
            renewing.cancel()
            await asyncio.wait({renewing})
            if self._leading:
                await self._release()
        if lost:
            raise LeadershipLost(
                f"{self.identity} could not renew the lease {self._namespace}/{self._name} "
                f"within {self._timing.renew:g} s, so another process may lead"
            )
        return working.result()

    async def _acquire(self) -> None:
        waiting_for: str | None = None
        while not await self._attempt((began := time.monotonic()) + self._timing.renew):
            if self.leader != waiting_for:
                waiting_for = self.leader
                log.info(
                    "Waiting: %s holds the lease %s/%s", waiting_for, self._namespace, self._name
                )
            await asyncio.sleep(self._timing.retry * (1 + random.random() * _JITTER))  # noqa: S311
        self._leading = True
        self.renewed_at = began

    async def _renew(self) -> None:
        """Renew the lease until renewals fail for too long."""
        renewed = time.monotonic()
        while self._leading:
            deadline = renewed + self._timing.renew
            await asyncio.sleep(min(self._timing.retry, deadline - time.monotonic()))
            began = time.monotonic()
            if began < deadline and await self._attempt(deadline):
                self.renewed_at = renewed = began
            elif time.monotonic() >= deadline or self.leader not in {self.identity, None, ""}:
                self._leading = False

    async def _attempt(self, deadline: float) -> bool:
        """Try once to take or renew the lease. Returns whether we hold it."""
        try:
            async with asyncio.timeout(max(0, deadline - time.monotonic())):
                return await self._take()
        except (ClientError, TimeoutError) as error:
            log.warning(
                "Could not take or renew the lease %s/%s: %s",
                self._namespace,
                self._name,
                str(error) or "no answer in time",
            )
            return False

    async def _take(self) -> bool:
        # The lease has usually not changed since we wrote it: this saves a read per renewal.
        if self._observed is None or self._observed.spec.holder_identity != self.identity:
            await self._read()
        for _ in range(2):
            if self._observed is not None and not may_lead(
                self._observed, self.identity, time.monotonic()
            ):
                return False
            try:
                await self._write(
                    claim(self._observed, self.identity, self._timing.lease, datetime.now(UTC))
                )
            except (AlreadyExists, Conflict, NotFound):
                # Another process changed or deleted it: read the new holder.
                await self._read()
            else:
                return True
        return False

    async def _read(self) -> None:
        lease = await self._client.find(Lease, self._name, self._namespace)
        now = time.monotonic()
        self._observed = observed(self._observed, lease, now) if lease is not None else None

    async def _write(self, spec: LeaseSpec) -> None:
        if self._observed is None:
            lease = await self._client.create(Lease.of(self._name, self._namespace, spec=spec))
        else:
            lease = await self._client.patch(
                Lease,
                self._name,
                self._namespace,
                {
                    "metadata": {"resourceVersion": self._observed.version},
                    "spec": spec.dump(),
                },
            )
        self._observed = observed(None, lease, time.monotonic())

    async def _release(self) -> None:
        self._leading = False
        self.renewed_at = None
        try:
            async with asyncio.timeout(self._timing.renew):
                if self._observed is not None:
                    await self._write(release(self._observed, datetime.now(UTC)))
        except (ClientError, TimeoutError) as error:
            log.warning(
                "Could not release the lease %s/%s, so it has to expire: %s",
                self._namespace,
                self._name,
                str(error) or "no answer in time",
            )
