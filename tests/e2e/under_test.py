"""A control plane under test, with functions of its backend."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from capelin.client import Client, Config
from capelin.controller import ObjectKey
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin_control_plane.api import BackendName
from capelin_control_plane.backends import Backend
from capelin_control_plane.backends.pods import PodsBackend
from capelin_control_plane.backends.processes import ProcessesBackend
from capelin_control_plane.reconciler import CapelinControlPlaneReconciler
from capelin_embedded.binaries import Binaries
from capelin_embedded.processes import kill_all, marked_processes

from tests.support.control_planes import ControlPlane

from .hosted import Hosted

ETCD_MEMBERS = 3
"""The etcd members of control planes in tests that count components."""


@dataclass(frozen=True)
class UnderTest:
    """A future control plane with functions of its backend."""

    control_plane: ControlPlane
    provider: Callable[[], AbstractAsyncContextManager[object]]
    """Runs the provider within the context."""
    programs: Callable[[], Awaitable[Mapping[str, str]]]
    """Running processes or containers by name, with an identity that changes at a restart."""
    kill: Callable[[str], Awaitable[bool]]
    """Kills a process by name if it runs."""
    components: Callable[[], Awaitable[Counter[str]]]
    """Running processes of each component, including unmanaged ones."""
    expected: Callable[[int], Mapping[str, int]]
    """The expected counts for a number of API servers."""
    left: Callable[[], list[str]]
    """Leftovers after its deletion."""
    end: Callable[[], Awaitable[None]]
    """Stops all its processes after any test."""

    async def runs_as_desired(self) -> bool:
        return (
            await self.control_plane.is_settled() and not await self.control_plane.is_remediating()
        )

    async def kill_any(self, component: str, index: int) -> str:
        """Kill one of a component's processes and return its name."""

        async def killed() -> str | None:
            names = sorted(name for name in await self.programs() if component in name)
            if not names:
                return None
            name = names[index % len(names)]
            return name if await self.kill(name) else None

        return await until(killed)

    async def problems(self) -> list[str]:
        """Differences from the spec in status and running processes."""
        found = await self.control_plane.unsettled()
        if await self.control_plane.is_remediating():
            found.append("it is remediating")
        expected = self.expected((await self.control_plane.get()).spec.replicas)
        if (now := await self.components()) != expected:
            found.append(f"{dict(now)} run, to be {dict(expected)}")
        return found


def on_processes(client: Client, config: Config, namespace: str, state: Path) -> UnderTest:
    def folders() -> list[Path]:
        return [*state.glob("*/run")]

    def marked() -> list[tuple[str, int]]:
        return [(one.name, one.identity.pid) for run in folders() for one in marked_processes(run)]

    def processes() -> dict[str, int]:
        return dict(marked())

    async def programs() -> Mapping[str, str]:
        return {name: str(pid) for name, pid in processes().items()}

    async def kill(name: str) -> bool:
        with suppress(KeyError, ProcessLookupError):
            os.kill(processes()[name], signal.SIGKILL)
            return True
        return False

    async def components() -> Counter[str]:
        return Counter(name.rpartition("-")[0] for name, _ in marked())

    def expected(replicas: int) -> Mapping[str, int]:
        controllers = {"kube-controller-manager": 1, "kube-scheduler": 1, "relay": 1}
        return {"etcd": ETCD_MEMBERS, "kube-apiserver": replicas, **controllers}

    reconcilers: list[CapelinControlPlaneReconciler] = []

    def wake(key: ObjectKey) -> None:
        reconcilers[-1].wake(key)

    # The test process is the provider and holds its locks.
    backend = ProcessesBackend(state, Binaries(), wake)
    backends: dict[BackendName, Backend] = {"Processes": backend}

    def running_provider() -> AbstractAsyncContextManager[object]:
        reconcilers.append(CapelinControlPlaneReconciler(backends))
        return running(reconcilers[-1], config=config, namespace=namespace)

    mine = ControlPlane(client, namespace, "one", "Processes")

    return UnderTest(
        mine,
        running_provider,
        programs,
        kill,
        components,
        expected,
        left=lambda: [*map(str, state.iterdir()), *processes()],
        end=lambda: _end(backend, ObjectKey(namespace, mine.name), folders()),
    )


async def _end(backend: ProcessesBackend, key: ObjectKey, folders: Iterable[Path]) -> None:
    # A supervisor would restart killed processes.
    await backend.release(key)
    for folder in folders:
        await kill_all(folder)


def on_pods(hosted: Hosted) -> UnderTest:
    kind, namespace = hosted.kind, hosted.namespace
    config = Config.from_kubeconfig(kind.kubeconfig)

    async def programs() -> Mapping[str, str]:
        return {
            pod.name: f"{pod.uid} {pod.status.container_statuses[0].restart_count}"
            for pod in await hosted.pods()
            if pod.status.container_statuses
        }

    async def kill(name: str) -> bool:
        labels = {"io.kubernetes.pod.namespace": namespace, "io.kubernetes.pod.name": name}
        selected = (f"--label={label}={value}" for label, value in labels.items())
        listed = await asyncio.to_thread(kind.on_node, "crictl", "ps", *selected, "--quiet")
        for container in listed.split():
            await asyncio.to_thread(kind.on_node, "crictl", "stop", "--timeout=0", container)
        return bool(listed.split())

    async def components() -> Counter[str]:
        pods = await hosted.pods()
        return Counter(pod.metadata.labels["app.kubernetes.io/component"] for pod in pods)

    def expected(replicas: int) -> Mapping[str, int]:
        controllers = dict.fromkeys(("kube-controller-manager", "kube-scheduler"), min(replicas, 2))
        return {"etcd": ETCD_MEMBERS, "kube-apiserver": replicas, **controllers}

    def running_provider() -> AbstractAsyncContextManager[object]:
        reconciler = CapelinControlPlaneReconciler({"Pods": PodsBackend(Client(config))})
        return running(reconciler, config=config, namespace=namespace)

    selector = "--selector=app.kubernetes.io/managed-by=capelin-control-plane"
    listed = "all,secret,configmap,pdb,netpol,pvc"

    def left() -> list[str]:
        arguments = ("get", listed, selector, "--output=name", f"--namespace={namespace}")
        return kind.kubectl(*arguments).split()

    async def end() -> None:
        """The namespace deletes its pods."""

    return UnderTest(hosted, running_provider, programs, kill, components, expected, left, end)
