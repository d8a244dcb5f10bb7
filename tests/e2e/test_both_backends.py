"""The life of a control plane, both on processes of this machine and on pods of kind."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pytest
from capelin.api.core import ConfigMap
from capelin.client import Client, ClientError, Config, Invalid
from capelin.contract import ASLEEP, PAUSED_ANNOTATION, find_condition
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.desired.control_plane import RENEW_ANNOTATION
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION
from capelin_control_plane.provider import provider

from tests.load import Load
from tests.support.control_planes import ControlPlane

from .conftest import VERSIONS
from .hosted import Hosted
from .kills import Change, Kill, planned_kills
from .under_test import ETCD_MEMBERS, UnderTest, on_pods, on_processes

OLD, NEW = VERSIONS
PAUSE_SECONDS = 0.1
SEED = int(os.environ.get("CAPELIN_TEST_SEED", "1"))
KILLS = int(os.environ.get("CAPELIN_TEST_KILLS", "8"))
ANSWER_SECONDS = 2
# The limit of the campaigns in tests/faults.
FALSE_SECONDS = 15

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(params=["Processes", "Pods"])
def hosted_if_on_pods(request: pytest.FixtureRequest) -> Hosted | None:
    """The fixture for tests of pods. No event loop runs here, so it may be asynchronous."""
    return request.getfixturevalue("unmanaged") if request.param == "Pods" else None


@pytest.fixture
async def under_test(
    request: pytest.FixtureRequest, hosted_if_on_pods: Hosted | None
) -> AsyncGenerator[UnderTest]:
    if hosted_if_on_pods is not None:
        yield on_pods(hosted_if_on_pods)
        return
    request.getfixturevalue("install_crds")(provider())
    namespace: str = request.getfixturevalue("namespace")
    state = request.getfixturevalue("tmp_path") / "control-planes"
    config = Config.from_kubeconfig(request.getfixturevalue("kubeconfig"))
    async with Client(config, manager="e2e") as client:
        made = on_processes(client, config, namespace, state)
        yield made
        await made.end()


async def test_the_life_of_a_control_plane(under_test: UnderTest) -> None:
    mine = under_test.control_plane
    async with under_test.provider():
        await mine.create(OLD)
        await mine.settles()
        load = Load(Config.from_kubeconfig(await mine.kubeconfig()), pause=PAUSE_SECONDS)
        loading = asyncio.create_task(load.run())
        await load.reaches(20)
        changes: list[dict[str, Any]] = [
            {"version": NEW},
            {"replicas": 2},
            {"replicas": 1},
            {"rollout": {"after": datetime.now(UTC).isoformat()}},
            {"scheduler": {"extraArgs": {"v": "1"}}},
        ]
        for change in changes:
            await mine.change(**change)
            await mine.settles()
            assert load.failed == [], change
        before = await mine.kubeconfig()
        await mine.annotate(RENEW_ANNOTATION, datetime.now(UTC).isoformat())
        await until(mine.kubeconfig, lambda now: now != before)
        await mine.settles()
        await load.reaches(load.sent + 20)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        assert load.failed == []
        async with mine.workload() as workload:
            kept = {found.name for found in (await workload.list(ConfigMap, "default")).items}
        assert load.written <= kept
        await mine.client.delete(CapelinControlPlane, mine.name, mine.namespace)
        await until(mine.is_gone, within=180)
        await until(under_test.left, lambda left: not left, within=60)


@dataclass
class Provider:
    """The provider, which stops and starts again."""

    run: Callable[[], AbstractAsyncContextManager[object]]
    is_running: bool = False
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        await self._stack.enter_async_context(self.run())
        self.is_running = True

    async def stop(self) -> None:
        self.is_running = False
        await self._stack.aclose()


async def test_seeded_kills_neither_lose_a_write_nor_leave_processes(
    under_test: UnderTest, record_property: Callable[[str, object], None]
) -> None:
    mine = under_test.control_plane
    provider = Provider(under_test.provider)
    kills = planned_kills(SEED, KILLS)
    await provider.start()
    try:
        await mine.create(OLD, etcd={"replicas": ETCD_MEMBERS})
        await until(under_test.problems, lambda found: not found, within=240)
        kubeconfig = await mine.kubeconfig()
        config = Config.from_kubeconfig(kubeconfig)
        load = Load(config, pause=PAUSE_SECONDS)
        async with (
            in_background(load.run()),
            false_conditions_of(mine, config, provider) as false_periods,
        ):
            for number, kill in enumerate(kills):
                with history_of(kills[: number + 1]):
                    began = monotonic()
                    await carry_out(kill, under_test, provider)
                    await until(under_test.problems, lambda found: not found, within=240)
                    record_property(f"seconds: {kill}", round(monotonic() - began, 1))
                    answered = len(load.written)
                    await until(lambda answered=answered: len(load.written) > answered)
                    written = set(load.written)
                    async with mine.workload() as workload:
                        kept = (await workload.list(ConfigMap, "default")).items
                    assert written - {found.name for found in kept} == set()
                    assert await mine.kubeconfig() == kubeconfig
                    assert false_periods == []
        record_property("requests", load.sent)
        record_property("requests that failed", len(load.failed))
        with history_of(kills):
            await mine.client.delete(CapelinControlPlane, mine.name, mine.namespace)
            await until(mine.is_gone, within=180)
            await until(under_test.left, lambda left: not left, within=60)
    finally:
        await provider.stop()


async def carry_out(kill: Kill, under_test: UnderTest, provider: Provider) -> None:
    changes: Mapping[Change, Mapping[str, Any]] = {
        "next version": {"version": NEW},
        "another API server": {"replicas": 2},
        "an API server less": {"replicas": 1},
        "rollout": {"rollout": {"after": datetime.now(UTC).isoformat()}},
    }
    if kill.change is not None:
        await under_test.control_plane.change(**changes[kill.change])
    await asyncio.sleep(kill.seconds)
    if kill.stops_provider:
        await provider.stop()
    before = await under_test.programs()
    name = kill.component and await under_test.kill_any(kill.component, kill.instance)
    if kill.stops_provider:
        await provider.start()
    if name:

        async def is_another() -> bool:
            return (await under_test.programs()).get(name) != before.get(name)

        await until(is_another)


@contextmanager
def history_of(kills: Sequence[Kill]) -> Generator[None]:
    """Add the kills and the seed to a failure, to reproduce it."""
    try:
        yield
    except AssertionError as error:
        done = "\n".join(map(str, kills))
        error.add_note(f"CAPELIN_TEST_SEED={SEED} CAPELIN_TEST_KILLS={KILLS}, until then:\n{done}")
        raise


@asynccontextmanager
async def in_background(work: Awaitable[None]) -> AsyncGenerator[None]:
    """Run work in the background of the context."""
    task = asyncio.ensure_future(work)
    try:
        yield
        # The work ends early only if it fails.
        assert not task.done() or task.exception() is None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def false_conditions_of(
    mine: ControlPlane, config: Config, provider: Provider
) -> AsyncGenerator[list[str]]:
    """Record periods in which it is reported as available but does not answer.

    While the provider is down, conditions are not updated.
    """
    false_periods: list[str] = []

    async def answers() -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                path = "/api/v1/namespaces/default"
                return (await Load(config).exchange("GET", path, None)).status < 500
        except (OSError, EOFError):
            return False

    async def look() -> None:
        since: float | None = None
        while True:
            await asyncio.sleep(1)
            is_available = (await mine.conditions())["Available"] == "True"
            if not provider.is_running or not is_available or await answers():
                since = None
            elif since is None:
                since = monotonic()
            elif monotonic() - since > FALSE_SECONDS:
                false_periods.append(f"Available for {FALSE_SECONDS} s while nothing answered")

    async with in_background(look()):
        yield false_periods


async def test_an_invalid_change_is_reported_and_restarts_nothing(under_test: UnderTest) -> None:
    mine = under_test.control_plane
    async with under_test.provider():
        await mine.create(NEW)
        await mine.settles()
        before = await under_test.programs()
        with pytest.raises(Invalid, match="never down"):
            await mine.change(version=OLD)
        await mine.change(apiServer={"extraArgs": {"audit-log-path": "/etc/passwd"}})
        await until(mine.reasons, lambda reasons: "InvalidConfiguration" in reasons)
        # Its availability with the desired spec is unknown, but it serves as before.
        assert (await mine.conditions())["Available"] != "False"
        async with mine.workload() as workload:
            await workload.list(ConfigMap, "default")
        await mine.change(apiServer={"extraArgs": {"audit-log-path": None}})
        await mine.settles()
        assert await under_test.programs() == before
        await mine.delete_all()


async def test_a_restart_of_the_provider_restarts_no_process(under_test: UnderTest) -> None:
    mine = under_test.control_plane
    async with under_test.provider():
        await mine.create(NEW)
        await mine.settles()
        before = await under_test.programs()
    load = Load(Config.from_kubeconfig(await mine.kubeconfig()), pause=PAUSE_SECONDS)
    loading = asyncio.create_task(load.run())
    await load.reaches(20)
    await mine.change(replicas=2)
    async with under_test.provider():
        await mine.settles()
        now = await under_test.programs()
        assert before.items() <= now.items()
        # On pods, two replicas of each controller exist too.
        assert count(now, "kube-apiserver") == count(before, "kube-apiserver") + 1
        await mine.annotate(PAUSED_ANNOTATION, "true")
        await until(mine.conditions, lambda all_: all_.get("Paused") == "True")
        await mine.change(replicas=1)
        await load.reaches(load.sent + 20)
        assert await under_test.programs() == now
        await mine.annotate(PAUSED_ANNOTATION, None)
        await mine.settles()
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        assert load.failed == []
        await mine.delete_all()


async def test_a_control_plane_sleeps_and_wakes(
    under_test: UnderTest, record_property: Callable[[str, object], None]
) -> None:
    mine = under_test.control_plane

    async def is_asleep() -> bool:
        return await has_message(mine, "sleeps") and not await under_test.programs()

    async def serves() -> bool:
        try:
            async with mine.workload() as workload:
                return await workload.find(ConfigMap, "kept", "default") is not None
        except ClientError:
            return False

    async with under_test.provider():
        await mine.create(OLD, replicas=2, etcd={"replicas": ETCD_MEMBERS})
        await mine.settles()
        async with mine.workload() as workload:
            await workload.create(ConfigMap.of("kept", "default"))
        await mine.annotate(SLEEP_ANNOTATION, datetime.now(UTC).isoformat())
        await until(is_asleep, within=120)
        await mine.change(version=NEW)
    # The next provider starts nothing either.
    async with under_test.provider():
        await until(lambda: has_message(mine, f"the upgrade to {NEW}"))
        assert await under_test.programs() == {}
        began = monotonic()
        await mine.annotate(WAKE_ANNOTATION, datetime.now(UTC).isoformat())
        await until(serves, within=180)
        record_property("seconds until it served", round(monotonic() - began, 1))
        await mine.settles()
        assert await serves()
        await mine.delete_all()


async def has_message(mine: ControlPlane, text: str) -> bool:
    status = (await mine.get()).status
    condition = find_condition(status.conditions, ASLEEP) if status else None
    return condition is not None and text in condition.message


def count(programs: Mapping[str, str], component: str) -> int:
    return sum(component in name for name in programs)
