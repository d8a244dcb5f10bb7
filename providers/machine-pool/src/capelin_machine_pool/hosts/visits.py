"""Visits to hosts over SSH, in tasks of their own: a dead host delays no other one.

The host and its object contain all progress. If the provider dies, the next one visits again.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from capelin.client import ClientError, Destinations
from capelin.controller import ObjectKey
from capelin.provider import Blocked

from capelin_machine_pool.bootstrap import (
    NOTHING,
    Archive,
    BootstrapStep,
    CleanStep,
    CloudConfig,
    HostState,
    Installation,
    MachineBootstrap,
    NoArchiveError,
    Transport,
    TransportError,
    UpdateStep,
    next_bootstrap_step,
    next_update_step,
    observe,
    take_baseline,
)
from capelin_machine_pool.bootstrap.ssh import read_host_key
from capelin_machine_pool.hosts.api import Bastion
from capelin_machine_pool.hosts.facts import observe_facts
from capelin_machine_pool.hosts.plan import Visit
from capelin_machine_pool.hosts.power import PowerError
from capelin_machine_pool.hosts.status import VisitResult, failed_visit
from capelin_machine_pool.reasons import Reason

_AT_ONCE: Final = (64, 16)
"""The limit of a provider, and that for hosts that did not answer the last time."""
_BEHIND_BASTION: Final = (6, 2)
"""The same for the hosts behind one bastion. OpenSSH rejects some of more than ten logins at once
(`MaxStartups 10:30:100`), and other users log in there too."""
Connect = Callable[[], AbstractAsyncContextManager[Transport]]
Claimed = Callable[[], Awaitable[bool]]
FindArchive = Callable[[str], Awaitable[Archive]]
ReadConfig = Callable[[], Awaitable[CloudConfig]]
Slot = Callable[[], AbstractAsyncContextManager[None]]
"""The permission to connect. A visit holds it until the connection is open."""

_LONGEST_SECONDS: Final = 300.0
"""Time after which a visit reports its progress and another one continues."""
_POLL_SECONDS: Final = 2.0
_FAILED_REQUEST_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


class Slots:
    """The limits of a provider. Dead hosts and slow bastions do not delay other hosts."""

    def __init__(self) -> None:
        self._limits: dict[tuple[str, int, bool], asyncio.Semaphore] = {}

    @asynccontextmanager
    async def taken(
        self, bastion: Bastion | None = None, *, after_failure: bool = False
    ) -> AsyncGenerator[None]:
        """Wait until a connection may be opened.

        Args:
            bastion: The bastion before the host, if any.
            after_failure: Whether the host did not answer the last time.
        """
        provider = self._limit("", 0, _AT_ONCE, after_failure=after_failure)
        if bastion is None:
            async with provider:
                yield
            return
        behind = self._limit(
            bastion.address, bastion.port, _BEHIND_BASTION, after_failure=after_failure
        )
        async with behind, provider:
            yield

    def _limit(
        self, address: str, port: int, counts: tuple[int, int], *, after_failure: bool
    ) -> asyncio.Semaphore:
        key = (address, port, after_failure)
        return self._limits.setdefault(key, asyncio.Semaphore(counts[after_failure]))


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitPlan:
    """A visit, with all that it needs."""

    visit: Visit
    connect: Connect
    uid: str | None = None
    """Identifier of the claim. None if the host has no claim."""
    machine: str = ""
    """Namespace and name of the machine, for people who look at the host."""
    read_config: ReadConfig | None = None
    """Reads the bootstrap data, right before they are used."""
    clean_commands: tuple[str, ...] = ()
    installation: Installation = NOTHING
    """The programs of the bootstrap, or of the update, without their archive."""
    find_archive: FindArchive | None = None
    """Finds the archive for an architecture, right before the host gets it."""
    is_claimed: Claimed | None = None
    """Whether the claim still exists. Asked right before the host is marked or updated."""
    takes_baseline: bool = False
    """Whether a check records the baseline of a host that has none."""


async def carry_out(plan: VisitPlan, slot: Slot) -> VisitResult:
    """Visit a host until its work has an end, or takes long.

    Args:
        plan: The visit.
        slot: The permission to connect.

    Raises:
        TransportError: The host does not answer, or the connection ended.
        Blocked: The bootstrap data that it needs are missing, or not supported.
    """
    async with AsyncExitStack() as stack:
        async with slot():
            transport = await stack.enter_async_context(plan.connect())
        if plan.visit in {Visit.CHECK, Visit.RENEW_BASELINE}:
            state = await _checked(plan, transport)
            facts = await observe_facts(transport)
            return VisitResult(visit=plan.visit, state=state, facts=facts, clock=time.time())
        return await _work(plan, transport)


async def _checked(plan: VisitPlan, transport: Transport) -> HostState:
    """The state of a host, which has a baseline if it can have one."""
    state = await observe(transport)
    renews = plan.visit is Visit.RENEW_BASELINE
    is_due = renews or (plan.takes_baseline and state.baseline is None)
    if not is_due or state.missing or state.marker is not None or state.node_files:
        return state
    await take_baseline(transport, renew=renews)
    return await observe(transport)


async def _work(plan: VisitPlan, transport: Transport) -> VisitResult:
    ends = time.monotonic() + _LONGEST_SECONDS
    again = plan.visit is Visit.CLEAN_AGAIN
    while True:
        state = await observe(transport)
        step = await _step(plan, transport, state, again=again)
        again = False
        is_over = step not in {
            *(BootstrapStep.MARK, BootstrapStep.START, BootstrapStep.WAIT),
            *(CleanStep.START, CleanStep.WAIT),
            *(UpdateStep.START, UpdateStep.WAIT),
        }
        if is_over or time.monotonic() > ends:
            return VisitResult(
                visit=plan.visit,
                state=state,
                step=step,
                config=await _config_of_output(plan, step),
                version=plan.installation.version,
            )
        if step in {BootstrapStep.WAIT, CleanStep.WAIT, UpdateStep.WAIT}:
            await asyncio.sleep(_POLL_SECONDS)


async def _step(
    plan: VisitPlan, transport: Transport, state: HostState, *, again: bool
) -> BootstrapStep | CleanStep | UpdateStep | None:
    uid = plan.uid or state.marker
    if uid is None:
        return CleanStep.CLEAN
    machine = MachineBootstrap(uid=uid, name=plan.machine)
    if plan.visit is Visit.BOOTSTRAP:
        next_ = next_bootstrap_step(uid, state)
        marks = next_ is BootstrapStep.MARK
        if marks and plan.is_claimed is not None and not await plan.is_claimed():
            return None
        # A host that has begun needs neither its data nor its archive any more.
        starts = next_ is BootstrapStep.START
        config = await _config(plan) if marks or starts else CloudConfig()
        installation = await _installation(plan, transport, begins=starts)
        return await machine.bootstrap(transport, config, state, installation)
    if plan.visit is Visit.UPDATE:
        begins = next_update_step(uid, plan.installation.version, state) is UpdateStep.START
        if begins and plan.is_claimed is not None and not await plan.is_claimed():
            return None
        installation = await _installation(plan, transport, begins=begins)
        return await machine.update(transport, installation, state)
    return await machine.clean(transport, state, plan.clean_commands, retry=again)


async def _config(plan: VisitPlan) -> CloudConfig:
    return CloudConfig() if plan.read_config is None else await plan.read_config()


async def _config_of_output(
    plan: VisitPlan, step: BootstrapStep | CleanStep | UpdateStep | None
) -> CloudConfig | None:
    """The data whose secrets the output of a failed bootstrap may have. None if they are gone."""
    if step not in {BootstrapStep.FAILED, BootstrapStep.INTERRUPTED}:
        return CloudConfig()
    try:
        return await _config(plan)
    except Blocked:
        return None


async def _installation(plan: VisitPlan, transport: Transport, *, begins: bool) -> Installation:
    """The programs to install."""
    if not begins or plan.find_archive is None:
        return plan.installation
    facts = await observe_facts(transport)
    return replace(plan.installation, archive=await plan.find_archive(facts.architecture))


async def learn_key(
    address: str, port: int, destinations: Destinations | None, slot: Slot
) -> VisitResult:
    """Read the key of a host.

    Raises:
        TransportError: It does not answer.
    """
    async with slot():
        key = await read_host_key(address, port, destinations)
    return VisitResult(visit=Visit.LEARN_KEY, host_key=key)


async def power_cycle(cycle: Callable[[], Awaitable[None]], slot: Slot) -> VisitResult:
    """Power cycle a host."""
    try:
        async with slot():
            await cycle()
    except PowerError as error:
        failure = (Reason.POWER_FAILED, str(error))
        return VisitResult(visit=Visit.POWER_CYCLE, failure=failure)
    return VisitResult(visit=Visit.POWER_CYCLE)


Work = Callable[[Slot], Awaitable[VisitResult]]
"""A visit, with the permission to connect."""


@dataclass(slots=True)
class _Run:
    purpose: Hashable
    task: asyncio.Task[None] | None = None
    result: VisitResult | None = None
    due: float = 0.0
    failed: bool = False
    """Whether the last visit could not reach the host."""


class Visits:
    """The visits of a provider, at most one at a time for each host.

    Args:
        wake: Has a host reconciled after its visit.
    """

    def __init__(self, wake: Callable[[ObjectKey], None]) -> None:
        self._wake = wake
        self._runs: dict[ObjectKey, _Run] = {}
        self._slots = Slots()

    def result(self, key: ObjectKey, purpose: Hashable) -> VisitResult | None:
        """The result of the last visit for a purpose, until the next one begins."""
        run = self._runs.get(key)
        is_current = run is not None and run.purpose == purpose and run.task is None
        return run.result if run is not None and is_current else None

    def is_due(self, key: ObjectKey, purpose: Hashable) -> bool:
        """Whether a visit has to begin."""
        run = self._runs.get(key)
        if run is None or run.purpose != purpose:
            return True
        return run.task is None and time.monotonic() >= run.due

    def settle(self, key: ObjectKey, seconds: float) -> None:
        """Use the result of a visit, and repeat the visit after this time."""
        run = self._runs[key]
        run.result, run.due = None, time.monotonic() + seconds

    def pending(self, key: ObjectKey) -> Hashable:
        """The purpose of a visit that continues, or whose result was not used. None if neither."""
        run = self._runs.get(key)
        return run.purpose if run and (run.task is not None or run.result is not None) else None

    def seconds_left(self, key: ObjectKey) -> float:
        """The time until the next visit, or a long time while one continues."""
        run = self._runs.get(key)
        if run is None or run.task is not None:
            return 2 * _LONGEST_SECONDS
        return max(0.1, run.due - time.monotonic())

    def start(
        self,
        key: ObjectKey,
        purpose: Hashable,
        visit: Visit,
        work: Work,
        bastion: Bastion | None = None,
    ) -> None:
        """Begin a visit. One for another purpose ends: the host keeps its progress."""
        former = self._runs.get(key)
        if former is not None and former.task is not None:
            former.task.cancel()
        failed = former is not None and former.failed
        slot = partial(self._slots.taken, bastion, after_failure=failed)
        run = self._runs[key] = _Run(purpose)
        run.task = asyncio.create_task(self._run(key, run, visit, partial(work, slot)))

    def forget(self, key: ObjectKey) -> None:
        """End the visit of a host that no longer exists."""
        run = self._runs.pop(key, None)
        if run is not None and run.task is not None:
            run.task.cancel()

    async def close(self) -> None:
        """End all visits."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self,
        key: ObjectKey,
        run: _Run,
        visit: Visit,
        work: Callable[[], Awaitable[VisitResult]],
    ) -> None:
        try:
            run.result = await work()
        except TransportError as error:
            run.result = failed_visit(visit, error.kind, str(error))
        except NoArchiveError as error:
            run.result = VisitResult(visit=visit, failure=(Reason.ARCHIVE_MISSING, str(error)))
        except Blocked as error:
            run.result = VisitResult(visit=visit, failure=(Reason(error.reason), str(error)))
        except ClientError as error:
            # The management cluster did not answer. The host has no problem.
            _log.warning("the visit to the host %s ended: %s", key, error)
            run.due = time.monotonic() + _FAILED_REQUEST_SECONDS
        except Exception:  # noqa: BLE001 - the condition shows it, and the next visit retries
            _log.exception("the visit to the host %s failed", key)
            run.result = failed_visit(visit, "unreachable", "the visit failed: see the log")
        run.failed = run.result is not None and run.result.failure is not None
        run.task = None
        self._wake(key)
