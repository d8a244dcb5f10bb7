"""The life of a control plane, alike on processes of this machine and on pods of a kind cluster."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from capelin.api.core import ConfigMap
from capelin.client import Client, Config, Invalid
from capelin.contract import PAUSED_ANNOTATION
from capelin.controller import ObjectKey
from capelin.embedded.binaries import Binaries
from capelin.embedded.processes import kill_all, marked_processes
from capelin.testing.load import Load
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin_control_plane.api import BackendName, CapelinControlPlane
from capelin_control_plane.backends import Backend
from capelin_control_plane.backends.pods import PodsBackend
from capelin_control_plane.backends.processes import ProcessesBackend
from capelin_control_plane.desired import PROGRAMS, RENEW_ANNOTATION
from capelin_control_plane.provider import provider
from capelin_control_plane.reconciler import CapelinControlPlaneReconciler

from .conftest import VERSIONS
from .hosted import ControlPlane, Hosted

OLD, NEW = VERSIONS
PAUSE_SECONDS = 0.1

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class UnderTest:
    """A control plane that is not made yet, and what only its backend knows."""

    control_plane: ControlPlane
    provider: Callable[[], AbstractAsyncContextManager[object]]
    """Runs the provider for as long as a block lasts."""
    programs: Callable[[], Awaitable[Mapping[str, str]]]
    """Everything that runs, by its name: something that is another's after a restart."""
    kill: Callable[[str], Awaitable[None]]
    """Kills the programs of a component."""
    left: Callable[[], list[str]]
    """What is left of it."""

    async def runs_as_wanted(self) -> bool:
        return (
            await self.control_plane.is_settled() and not await self.control_plane.is_remediating()
        )


@pytest.fixture(params=["Processes", "Pods"])
def hosted_if_on_pods(request: pytest.FixtureRequest) -> Hosted | None:
    """What the tests of pods need: no loop runs here, so it may be a coroutine's."""
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
        yield on_processes(client, config, namespace, state)
        for folder in state.iterdir() if state.exists() else ():
            await kill_all(folder / "run")


def on_processes(client: Client, config: Config, namespace: str, state: Path) -> UnderTest:
    def processes() -> dict[str, int]:
        folders = state.glob("*/run")
        return {one.name: one.identity.pid for run in folders for one in marked_processes(run)}

    async def programs() -> Mapping[str, str]:
        return {name: str(pid) for name, pid in processes().items()}

    async def kill(component: str) -> None:
        for name, pid in processes().items():
            if name.startswith(component):
                os.kill(pid, signal.SIGKILL)

    reconcilers: list[CapelinControlPlaneReconciler] = []

    def wake(key: ObjectKey) -> None:
        reconcilers[-1].wake(key)

    # Its locks end with the process of the provider, which is the test's own.
    backends: dict[BackendName, Backend] = {"Processes": ProcessesBackend(state, Binaries(), wake)}

    def running_provider() -> AbstractAsyncContextManager[object]:
        reconcilers.append(CapelinControlPlaneReconciler(backends))
        return running(reconcilers[-1], config=config, namespace=namespace)

    return UnderTest(
        ControlPlane(client, namespace, "one", "Processes"),
        running_provider,
        programs,
        kill,
        left=lambda: [*map(str, state.iterdir()), *processes()],
    )


def on_pods(hosted: Hosted) -> UnderTest:
    kind, namespace = hosted.kind, hosted.namespace
    config = Config.from_kubeconfig(kind.kubeconfig)

    async def programs() -> Mapping[str, str]:
        return {
            pod.name: f"{pod.uid} {pod.status.container_statuses[0].restart_count}"
            for pod in await hosted.pods()
            if pod.status.container_statuses
        }

    async def kill(component: str) -> None:
        await asyncio.to_thread(kind.kill_container, component, namespace)

    def running_provider() -> AbstractAsyncContextManager[object]:
        reconciler = CapelinControlPlaneReconciler({"Pods": PodsBackend(Client(config))})
        return running(reconciler, config=config, namespace=namespace)

    selector = "--selector=app.kubernetes.io/managed-by=capelin-control-plane"
    listed = "all,secret,configmap,pdb,netpol,pvc"

    def left() -> list[str]:
        arguments = ("get", listed, selector, "--output=name", f"--namespace={namespace}")
        return kind.kubectl(*arguments).split()

    return UnderTest(hosted, running_provider, programs, kill, left)


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


async def test_what_is_killed_is_started_again(under_test: UnderTest) -> None:
    mine = under_test.control_plane
    async with under_test.provider():
        await mine.create(NEW)
        await mine.settles()
        async with mine.workload() as workload:
            await workload.create(ConfigMap.of("kept", "default"))
        for component in PROGRAMS:
            before = await under_test.programs()
            await under_test.kill(component)

            async def is_another(before: Mapping[str, str] = before) -> bool:
                now = await under_test.programs()
                return now.keys() == before.keys() and now != before

            await until(is_another)
            await until(under_test.runs_as_wanted, within=240)
        async with mine.workload() as workload:
            await workload.get(ConfigMap, "kept", "default")
        await mine.delete_all()


async def test_what_cannot_be_run_is_said_and_changes_nothing(under_test: UnderTest) -> None:
    mine = under_test.control_plane
    async with under_test.provider():
        await mine.create(NEW)
        await mine.settles()
        before = await under_test.programs()
        with pytest.raises(Invalid, match="never down"):
            await mine.change(version=OLD)
        await mine.change(apiServer={"extraArgs": {"audit-log-path": "/etc/passwd"}})
        await until(mine.reasons, lambda reasons: "InvalidConfiguration" in reasons)
        # It cannot be said that it is available as desired; it is as before.
        assert (await mine.conditions())["Available"] != "False"
        async with mine.workload() as workload:
            await workload.list(ConfigMap, "default")
        await mine.change(apiServer={"extraArgs": {"audit-log-path": None}})
        await mine.settles()
        assert await under_test.programs() == before
        await mine.delete_all()


async def test_nothing_restarts_while_the_provider_is_away(under_test: UnderTest) -> None:
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
        # On pods, there are two of each controller then, too.
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


def count(programs: Mapping[str, str], component: str) -> int:
    return sum(component in name for name in programs)
