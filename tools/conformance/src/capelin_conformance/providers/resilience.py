"""Behaviour of a manager whose requests fail, that is killed, or that runs twice."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, cast

from capelin.api import Unstructured
from capelin.api.core import Namespace
from capelin.client import ClientError

from capelin_conformance.providers.bench import Bench
from capelin_conformance.providers.fields import value_at
from capelin_conformance.providers.gateway import FAULTS
from capelin_conformance.providers.lifecycle import COMMON_CONTRACTS, BehaviourCheck, writes
from capelin_conformance.providers.rules import Rule, UntriedError, rule

_MAX_KILLS: Final = 12
_POLL_SECONDS: Final = 0.05
_KILLING: Final = 2.0
"""How long the checks kill a manager, in multiples of the time for one change."""


@rule(*COMMON_CONTRACTS)
async def failed_requests(bench: Bench) -> AsyncIterator[str]:
    """Requests that fail, or whose response is lost, do not change the result.

    Source: https://kubernetes.io/docs/concepts/architecture/controller/#controller-pattern
    Fix: return the error, so that the object is reconciled again, and make each step repeatable.
    """
    gateway = bench.manager.gateway
    async with _comparison(bench) as comparison:
        with gateway.failing(bench.namespace, FAULTS):
            await bench.create()
            await bench.becomes(comparison.is_equal)
        async for problem in comparison.problems():
            yield problem


@rule(*COMMON_CONTRACTS, alone=True)
async def expired_watches(bench: Bench) -> AsyncIterator[str]:
    """The provider lists objects again after its watches have ended with 410 Gone.

    Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#410-gone-responses
    Fix: after this response, list all objects and begin a new watch.
    """
    bench.manager.gateway.expire_watches()
    await bench.hold()
    await bench.create()
    if not await bench.becomes(bench.reached):
        yield f"{bench.milestone} is not true after watches have expired"


@rule(*COMMON_CONTRACTS, alone=True)
async def kills(bench: Bench) -> AsyncIterator[str]:
    """A manager that is killed after a write continues with the objects that exist.

    Source: https://kubernetes.io/docs/concepts/architecture/controller/#controller-pattern
    Fix: keep no state in memory, and look for existing objects before you create some.
    """
    async with _comparison(bench) as comparison:
        done = asyncio.Event()
        killing = asyncio.create_task(_kill_after_writes(bench, done))
        try:
            await bench.create()
            await bench.becomes(comparison.is_equal, _KILLING * bench.timing.patience)
        finally:
            done.set()
            await killing
        await bench.becomes(comparison.is_equal)
        async for problem in comparison.problems():
            yield problem


@rule(*COMMON_CONTRACTS, alone=True)
async def two_instances(bench: Bench) -> AsyncIterator[str]:
    """Two instances of the manager reach the same result as one, and do not write in turns.

    Source: clusterctl#controllers-watching-namespace
    Fix: elect a leader, or write only values that do not depend on the process.
    """
    async with _comparison(bench) as comparison, bench.manager.another() as second:
        await bench.create()
        await bench.becomes(comparison.is_equal)
        async for problem in comparison.problems():
            yield problem
        await bench.hold()
        states = await bench.changes(await bench.get())
        if len(states) > 1:
            yield writes(states, bench.timing.rest)
        if second.has_ended:
            hint = "add {instance} to the ports in --manager"
            raise UntriedError(f"the second instance ended ({hint}): {second.last_output()}")


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The result of a disturbed provider, and that of an undisturbed one."""

    bench: Bench
    expected: dict[str, int]
    states: Sequence[Unstructured]

    async def is_equal(self) -> bool:
        return await self.bench.reached() and await self.bench.size() == self.expected

    async def problems(self) -> AsyncIterator[str]:
        bench = self.bench
        if not await bench.reached():
            yield f"{bench.milestone} is not true after {bench.timing.patience:g} s"
        found = await bench.size()
        for kind in sorted(found.keys() | self.expected.keys()):
            count, expected = found.get(kind, 0), self.expected.get(kind, 0)
            if count != expected:
                yield f"there are {count} objects of the kind {kind}, instead of {expected}"
        milestones = [value_at(state, bench.milestone) for state in self.states]
        if True in milestones and milestones[-1] is not True:
            yield f"{bench.milestone} became true, and did not stay true"
        identities = [_identities(value_at(state, bench.identity)) for state in self.states]
        for lost in sorted(set[str]().union(*identities) - (identities or [set()])[-1]):
            yield f"{bench.identity} lacks {lost}, which it contained before"


@asynccontextmanager
async def _comparison(bench: Bench) -> AsyncGenerator[_Comparison]:
    """Record the states of the object under test, to compare it with an undisturbed one."""
    other = type(bench)(bench.world, f"{bench.name}-undisturbed")
    try:
        await bench.client.create(Namespace.of(other.namespace))
        await other.provision()
        await other.hold()
        expected = await other.size()
    finally:
        with suppress(ClientError):
            await other.clean_up()
    async with bench.recorded() as states:
        yield _Comparison(bench, expected, states)


def _identities(value: object) -> set[str]:
    """The identities in a field: a name, a list of names, or an endpoint."""
    if isinstance(value, list):
        return {str(item) for item in cast("list[object]", value)}
    if isinstance(value, dict) and not all(cast("dict[str, object]", value).values()):
        return set()
    return {str(cast("object", value))} if value else set()


async def _kill_after_writes(bench: Bench, done: asyncio.Event) -> None:
    """Kill and restart the manager after each write whose response the gateway holds."""
    end = time.monotonic() + _KILLING * bench.timing.patience
    with bench.manager.gateway.holding(bench.namespace) as held:
        kills = 0
        while kills < _MAX_KILLS and time.monotonic() < end and not done.is_set():
            if held:
                await bench.manager.restart()
                held.clear()
                kills += 1
            await asyncio.sleep(_POLL_SECONDS)
    # The gateway may still hold a response.
    await bench.manager.restart()


RESILIENCE_RULES: Final[tuple[Rule[BehaviourCheck], ...]] = (
    failed_requests,
    expired_watches,
    kills,
    two_instances,
)
