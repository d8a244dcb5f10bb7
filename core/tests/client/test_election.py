from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from capelin.api.core import Lease, LeaseSpec
from capelin.client import Client, ElectionTiming, LeaderElection, LeadershipLost
from capelin.client.election import Observed, claim, may_lead, observed, release
from capelin.testing.waiting import until

if TYPE_CHECKING:
    from core.tests.client.conftest import Scripted

THEN = datetime(2030, 1, 1, tzinfo=UTC)
LATER = THEN + timedelta(seconds=5)
THEIRS = LeaseSpec(
    holder_identity="other",
    lease_duration_seconds=15,
    acquire_time=THEN,
    renew_time=THEN,
    lease_transitions=3,
)
QUICK = ElectionTiming(lease=2, renew=1, retry=0.1)
LONG = ElectionTiming(lease=100, renew=50, retry=0.1)


def lease(spec: LeaseSpec, version: str = "7") -> Lease:
    lease = Lease.of("election", "default", spec=spec)
    lease.metadata.resource_version = version
    return lease


def test_a_lease_is_not_free_while_its_holder_renews_it() -> None:
    assert not may_lead(Observed(THEIRS, "7", since=100), "me", now=114.9)


def test_a_lease_is_free_if_it_is_unchanged_for_its_duration() -> None:
    assert may_lead(Observed(THEIRS, "7", since=100), "me", now=115)


def test_only_our_own_clock_decides_whether_a_lease_is_free() -> None:
    for renewed in (THEN - timedelta(days=365), THEN + timedelta(days=365)):
        spec = THEIRS.model_copy(update={"renew_time": renewed})
        observation = observed(None, lease(spec), now=100)
        assert not may_lead(observation, "me", now=114)
        assert may_lead(observation, "me", now=115)


def test_our_own_and_unheld_leases_are_free() -> None:
    assert may_lead(Observed(THEIRS, "7", since=100), "other", now=100)
    assert may_lead(Observed(release(Observed(THEIRS, "7", 100), THEN), "7", 100), "me", now=100)
    assert may_lead(Observed(LeaseSpec(), "7", since=100), "me", now=100)


def test_an_unchanged_lease_keeps_its_age() -> None:
    first = observed(None, lease(THEIRS, "7"), now=100)
    same = observed(first, lease(THEIRS, "8"), now=107)
    assert (same.since, same.version) == (100, "8")
    renewed = THEIRS.model_copy(update={"renew_time": LATER})
    assert observed(same, lease(renewed, "9"), now=109).since == 109


def test_taking_a_lease_counts_the_transition() -> None:
    assert claim(None, "me", 15, THEN) == LeaseSpec(
        holder_identity="me",
        lease_duration_seconds=15,
        acquire_time=THEN,
        renew_time=THEN,
        lease_transitions=0,
    )
    taken = claim(Observed(THEIRS, "7", since=0), "me", 15, LATER)
    assert (taken.holder_identity, taken.lease_transitions) == ("me", 4)
    assert taken.acquire_time == taken.renew_time == LATER


def test_renewing_a_lease_changes_only_the_time() -> None:
    renewed = claim(Observed(THEIRS, "7", since=0), "other", 15, LATER)
    assert renewed == THEIRS.model_copy(update={"renew_time": LATER})


def test_a_released_lease_keeps_its_transitions() -> None:
    free = release(Observed(THEIRS, "7", since=0), LATER)
    assert (free.holder_identity, free.lease_duration_seconds, free.lease_transitions) == ("", 1, 3)


@pytest.mark.parametrize("timing", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_timing_that_permits_two_leaders_is_rejected(timing: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must be longer"):
        ElectionTiming(*timing)


def elections(
    client: Client, namespace: str, *names: str, timing: ElectionTiming = QUICK
) -> list[LeaderElection]:
    return [
        LeaderElection(client, "election", namespace, identity=name, timing=timing)
        for name in names
    ]


async def forever() -> None:
    await asyncio.Event().wait()


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_the_next_leader_starts_at_once_after_a_release(
    client: Client, namespace: str
) -> None:
    first, second = elections(client, namespace, "first", "second", timing=LONG)
    leading = asyncio.create_task(first.run(forever))
    await until(lambda: first.is_leader)
    waiting = asyncio.create_task(second.run(forever))
    await until(lambda: second.leader == "first")
    assert not second.is_leader
    held = await client.get(Lease, "election", namespace)
    assert held.spec.holder_identity == "first"
    assert held.spec.lease_duration_seconds == LONG.lease
    await cancel(leading)
    await until(lambda: second.is_leader, within=LONG.lease / 2)
    assert not first.is_leader
    held = await client.get(Lease, "election", namespace)
    assert (held.spec.holder_identity, held.spec.lease_transitions) == ("second", 1)
    await cancel(waiting)
    freed = await client.get(Lease, "election", namespace)
    assert freed.spec.holder_identity == ""


async def test_run_returns_the_result_of_the_work(client: Client, namespace: str) -> None:
    async def work() -> int:
        return 7

    (election,) = elections(client, namespace, "me")
    assert await election.run(work) == 7
    assert not election.is_leader


async def test_a_failure_of_the_work_frees_the_lease(client: Client, namespace: str) -> None:
    async def work() -> None:
        raise LookupError("broken")

    (election,) = elections(client, namespace, "me")
    with pytest.raises(LookupError, match="broken"):
        await election.run(work)
    assert (await client.get(Lease, "election", namespace)).spec.holder_identity == ""


async def test_lease_is_renewed_until_the_work_ends(client: Client, namespace: str) -> None:
    ended: list[str | None] = []

    async def work() -> None:
        try:
            await forever()
        finally:
            # Without renewals the lease would expire in this time.
            await asyncio.sleep(QUICK.lease * 1.2)
            held = await client.get(Lease, "election", namespace)
            ended.append(held.spec.holder_identity)

    first, second = elections(client, namespace, "first", "second")
    leading = asyncio.create_task(first.run(work))
    await until(lambda: first.is_leader)
    waiting = asyncio.create_task(second.run(forever))
    await cancel(leading)
    assert ended == ["first"]
    await until(lambda: second.is_leader)
    await cancel(waiting)


async def test_a_silent_leader_is_replaced_when_its_lease_expires(
    client: Client, namespace: str
) -> None:
    silent = THEIRS.model_copy(update={"lease_duration_seconds": 1, "renew_time": LATER})
    await client.create(Lease.of("election", namespace, spec=silent))
    (election,) = elections(client, namespace, "me")
    before = asyncio.get_running_loop().time()
    task = asyncio.create_task(election.run(forever))
    await until(lambda: election.is_leader)
    assert asyncio.get_running_loop().time() - before >= 1
    assert (await client.get(Lease, "election", namespace)).spec.lease_transitions == 4
    await cancel(task)


async def test_a_leader_stops_at_once_if_another_takes_its_lease(
    client: Client, namespace: str
) -> None:
    stopped = asyncio.Event()

    async def work() -> None:
        try:
            await forever()
        finally:
            stopped.set()

    timing = ElectionTiming(lease=120, renew=100, retry=0.1)
    election = LeaderElection(client, "election", namespace, identity="me", timing=timing)
    task = asyncio.create_task(election.run(work))
    await until(lambda: election.is_leader)
    await client.patch(Lease, "election", namespace, {"spec": THEIRS.dump()})
    await until(task.done)
    with pytest.raises(LeadershipLost, match=f"me could not renew the lease {namespace}/election"):
        await task
    assert stopped.is_set()
    assert (await client.get(Lease, "election", namespace)).spec.holder_identity == "other"


async def test_deleted_lease_is_created_again(client: Client, namespace: str) -> None:
    (election,) = elections(client, namespace, "me")
    task = asyncio.create_task(election.run(forever))
    await until(lambda: election.is_leader)
    await client.delete(Lease, "election", namespace)
    await until(lambda: client.find(Lease, "election", namespace))
    assert election.is_leader
    await cancel(task)


async def test_a_leader_that_cannot_renew_stops_before_another_may_lead(server: Scripted) -> None:
    made = lease(claim(None, "me", 2, datetime.now(UTC))).dump()
    server.then(server.failure(404, "NotFound"), server.reply(201, made))
    server.then(*[server.failure(500, "InternalError")] * 100)
    async with server.client() as client:
        timing = ElectionTiming(lease=60, renew=1, retry=0.1)
        (election,) = elections(client, "default", "me", timing=timing)
        before = asyncio.get_running_loop().time()
        with pytest.raises(LeadershipLost):
            await election.run(forever)
        lasted = asyncio.get_running_loop().time() - before
    assert timing.renew <= lasted < timing.lease


async def test_unreleased_lease_expires(server: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> int:
        return 7

    made = lease(claim(None, "me", 2, datetime.now(UTC))).dump()
    server.then(server.failure(404, "NotFound"), server.reply(201, made))
    server.then(server.failure(403, "Forbidden"))
    async with server.client() as client:
        (election,) = elections(client, "default", "me")
        assert await election.run(work) == 7
    assert (
        "Could not release the lease default/election, so it has to expire: it is Forbidden"
        in caplog.text
    )


async def test_a_leader_survives_temporary_renewal_failures(server: Scripted) -> None:
    made = lease(claim(None, "me", 2, datetime.now(UTC))).dump()
    server.then(server.failure(404, "NotFound"), server.reply(201, made))
    server.then(server.hang_up, server.failure(500, "InternalError"), server.reply(200, made))
    server.then(*[server.reply(200, made)] * 100)
    async with server.client() as client:
        (election,) = elections(client, "default", "me")
        task = asyncio.create_task(election.run(forever))
        async with server.received:
            await server.received.wait_for(lambda: len(server.requests) >= 15)
        assert election.is_leader
        await cancel(task)
