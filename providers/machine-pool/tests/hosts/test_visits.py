"""Visits: bounded, one at a time for each host, and repeated after failures."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from capelin.controller import ObjectKey
from capelin.provider import Blocked
from capelin.testing.waiting import until
from capelin_machine_pool.bootstrap import (
    BootstrapStep,
    CloudConfig,
    CommandResult,
    Transport,
    TransportError,
)
from capelin_machine_pool.hosts.plan import Visit
from capelin_machine_pool.hosts.status import VisitResult
from capelin_machine_pool.hosts.visits import Slot, VisitPlan, Visits, carry_out
from capelin_machine_pool.reasons import Reason

FREE = b"boot=1\nhostname=a\nend=\n"
FACTS = b"cpus=4\nfacts-end=\n"
READY = b"boot=1\nhostname=a\nmarker=uid\nbootstrap.alive=no\nbootstrap.exit=0 yes\nend=\n"
FAILED = READY.replace(b"exit=0 yes", b"exit=3 no")
TAKEN = FREE.replace(b"end=", b"baseline=abc\nend=")


class Machine(Transport):
    """A machine that answers the scripts of a check."""

    def __init__(self) -> None:
        self.answers = [FREE, FACTS]

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_seconds: float = 30,
        max_output: int = 1 << 20,
    ) -> CommandResult:
        del command, stdin, timeout_seconds, max_output
        return CommandResult(0, self.answers.pop(0))


class World:
    """Hosts of which some are dead."""

    def __init__(self) -> None:
        self.finished: list[str] = []
        self.visits = Visits(lambda key: self.finished.append(key.name))
        self.silent = asyncio.Event()
        """Set when dead hosts have taken too long."""

    @asynccontextmanager
    async def connect(self, name: str) -> AsyncGenerator[Transport]:
        if name.startswith("dead"):
            await self.silent.wait()
            raise TransportError(f"{name} does not answer in time")
        yield Machine()

    def start(self, name: str) -> None:
        plan = VisitPlan(visit=Visit.CHECK, connect=lambda: self.connect(name))

        async def work(slot: Slot) -> VisitResult:
            return await carry_out(plan, slot)

        self.visits.start(key(name), "check", Visit.CHECK, work)

    def result(self, name: str) -> VisitResult | None:
        return self.visits.result(key(name), "check")


def key(name: str) -> ObjectKey:
    return ObjectKey("team", name)


async def test_dead_hosts_do_not_delay_others() -> None:
    world = World()
    dead = [f"dead-{number}" for number in range(100)]
    for name in dead:
        world.start(name)
    world.silent.set()
    await until(lambda: len(world.finished) == len(dead))
    failure = world.result("dead-0")
    assert failure is not None
    assert failure.failure == (Reason.HOST_UNREACHABLE, "dead-0 does not answer in time")
    # From now on, they share a few of the slots.
    world.silent.clear()
    for name in dead:
        world.start(name)
    world.start("alive")
    await until(lambda: "alive" in world.finished, within=5)
    checked = world.result("alive")
    assert checked is not None
    assert checked.facts is not None
    assert checked.facts.cpus == 4
    await world.visits.close()


async def test_visit_for_another_purpose_replaces_the_first() -> None:
    world = World()
    world.start("dead-0")
    assert not world.visits.is_due(key("dead-0"), "check")
    assert world.visits.is_due(key("dead-0"), "clean")

    async def clean(slot: Slot) -> VisitResult:
        del slot
        return VisitResult(visit=Visit.CLEAN)

    world.visits.start(key("dead-0"), "clean", Visit.CLEAN, clean)
    await until(lambda: world.visits.result(key("dead-0"), "clean") is not None)
    assert world.result("dead-0") is None
    world.visits.settle(key("dead-0"), 60)
    assert not world.visits.is_due(key("dead-0"), "clean")
    assert 50 < world.visits.seconds_left(key("dead-0")) <= 60
    await world.visits.close()


async def test_host_whose_command_fails_counts_as_reachable() -> None:
    world = World()
    machine = Machine()
    machine.answers = [FREE, b"no space left on device\n"]

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Transport]:
        yield machine

    async def work(slot: Slot) -> VisitResult:
        return await carry_out(VisitPlan(visit=Visit.CHECK, connect=connect), slot)

    world.visits.start(key("full"), "check", Visit.CHECK, work)
    await until(lambda: world.result("full") is not None)
    result = world.result("full")
    assert result is not None
    assert result.failure == (Reason.HOST_COMMAND_FAILED, "the machine's answer is not complete")


async def test_failed_visit_names_no_details_of_a_defect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()

    async def broken(slot: Slot) -> VisitResult:
        del slot
        raise RuntimeError("hunter2")

    world.visits.start(key("a"), "check", Visit.CHECK, broken)
    await until(lambda: world.result("a") is not None)
    result = world.result("a")
    assert result is not None
    assert result.failure == (Reason.HOST_UNREACHABLE, "the visit failed: see the log")
    assert "the visit to the host team/a failed" in caplog.text


@asynccontextmanager
async def no_slot() -> AsyncGenerator[None]:
    yield


async def missing() -> CloudConfig:
    raise Blocked(Reason.INVALID_BOOTSTRAP_DATA, "the Secret does not exist")


async def visit(machine: Machine, visit: Visit, **changes: Any) -> VisitResult:
    @asynccontextmanager
    async def connect() -> AsyncGenerator[Transport]:
        yield machine

    return await carry_out(VisitPlan(visit=visit, connect=connect, **changes), no_slot)


async def test_check_records_the_baseline_of_a_host_without_one() -> None:
    machine = Machine()
    machine.answers = [FREE, b"", TAKEN, FACTS]
    checked = await visit(machine, Visit.CHECK, takes_baseline=True)
    assert checked.state is not None
    assert checked.state.baseline == "abc"
    # Not of a host that no person has confirmed to be clean.
    machine.answers = [FREE, FACTS]
    checked = await visit(machine, Visit.CHECK)
    assert checked.state is not None
    assert checked.state.baseline is None


@pytest.mark.parametrize("visit_", [Visit.CHECK, Visit.RENEW_BASELINE])
async def test_node_of_a_cluster_never_becomes_the_baseline(visit_: Visit) -> None:
    machine = Machine()
    machine.answers = [FREE.replace(b"end=", b"node=/a\nend="), FACTS]
    checked = await visit(machine, visit_, takes_baseline=True)
    assert checked.state is not None
    assert checked.state.node_files == ("/a",)


async def test_host_that_has_begun_needs_no_bootstrap_data() -> None:
    machine = Machine()
    machine.answers = [READY]
    looked = await visit(machine, Visit.BOOTSTRAP, uid="uid", read_config=missing)
    assert looked.step is BootstrapStep.SUCCEEDED
    machine.answers = [FAILED]
    looked = await visit(machine, Visit.BOOTSTRAP, uid="uid", read_config=missing)
    assert (looked.step, looked.config) == (BootstrapStep.FAILED, None)


async def test_missing_bootstrap_data_mark_no_host() -> None:
    world = World()
    machine = Machine()
    machine.answers = [FREE]

    async def work(slot: Slot) -> VisitResult:
        del slot
        return await visit(machine, Visit.BOOTSTRAP, uid="uid", read_config=missing)

    world.visits.start(key("a"), "check", Visit.BOOTSTRAP, work)
    await until(lambda: world.result("a") is not None)
    result = world.result("a")
    assert result is not None
    assert result.failure == (Reason.INVALID_BOOTSTRAP_DATA, "the Secret does not exist")
