"""The process that keeps simulated nodes alive: KWOK, one a workload cluster."""

import asyncio
import hashlib
import json
import shutil
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from capelin.controller import ObjectKey
from capelin.embedded.addresses import address_of, free_port
from capelin.embedded.binaries import Binaries
from capelin.embedded.processes import (
    AlreadySupervisedError,
    Command,
    Declared,
    Process,
    Supervisor,
    listening,
    private_folder,
    write_private,
)

from capelin_machine_pool.backends import keeper

_NAME = "kwok"
_LEASE_SECONDS = 80
"""KWOK renews a lease after a quarter of it, and where that failed tries no sooner again. As
Kubernetes waits 50 s, one renewal may fail, or the process be replaced. Kubelets renew theirs
every ten seconds; for a thousand Nodes, that alone is half a core's work."""

_BECOMES_READY: dict[str, Any] = {
    "apiVersion": "kwok.x-k8s.io/v1alpha1",
    "kind": "Stage",
    "metadata": {"name": "becomes-ready"},
    "spec": {
        "resourceRef": {"apiGroup": "v1", "kind": "Node"},
        "selector": {
            "matchExpressions": [
                {
                    "key": '.status.conditions.[] | select(.type == "Ready") | .status',
                    "operator": "NotIn",
                    "values": ["True"],
                }
            ]
        },
        "next": {
            "statusTemplate": """
phase: Running
conditions:
{{ $now := Now }}
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
"""
        },
    },
}
"""All that a Node goes through. Its lease shows that it lives.

KWOK's own stages would write each Node's status every twenty seconds, leases or not: with a
thousand Nodes, most of what their API server does.
"""


@dataclass(slots=True, eq=False)
class _Running:
    """The process of a workload cluster, and what it was started with."""

    digest: str
    stack: AsyncExitStack


class Kwok:
    """KWOK processes, which outlive the provider and are found again by their cluster's name."""

    def __init__(self, state: Path, binaries: Binaries) -> None:
        self._state = state
        self._binaries = binaries
        self._running: dict[ObjectKey, _Running] = {}
        self._one_at_a_time = asyncio.Lock()

    async def keep_alive(self, cluster: ObjectKey, kubeconfig: bytes) -> None:
        """Have a process for a cluster, with this kubeconfig."""
        async with self._one_at_a_time:
            await self._keep_alive(cluster, kubeconfig)

    def clusters(self, namespace: str) -> list[ObjectKey]:
        """The clusters in a namespace that there is a process for, or was."""
        prefix = f"{namespace}."
        names = (found.name for found in self._state.glob(f"{prefix}*"))
        return [ObjectKey(namespace, name.removeprefix(prefix)) for name in sorted(names)]

    async def stop(self, cluster: ObjectKey) -> None:
        """Stop a cluster's process, and leave nothing of it, unless others look after it by now."""
        async with self._one_at_a_time:
            await self.let_go(cluster)
            folder = self._folder(cluster)
            if not folder.exists():
                return
            with suppress(AlreadySupervisedError):
                async with Supervisor(_processes(folder)) as supervisor:
                    await supervisor.stop()
                    # Under its lock: a provider that shares the folder may come to look after it.
                    shutil.rmtree(folder)

    async def let_go(self, cluster: ObjectKey) -> None:
        """Look after a cluster's process no longer, and let it run."""
        running = self._running.pop(cluster, None)
        if running is not None:
            await running.stack.aclose()

    async def _keep_alive(self, cluster: ObjectKey, kubeconfig: bytes) -> None:
        stages = json.dumps(_BECOMES_READY).encode()
        digest = hashlib.sha256(stages + kubeconfig).hexdigest()
        running = self._running.get(cluster)
        if running is not None and running.digest == digest:
            return
        program = await self._binaries.path("kwok")
        folder = private_folder(self._folder(cluster))
        await self.let_go(cluster)
        async with AsyncExitStack() as stack:
            supervisor = await stack.enter_async_context(Supervisor(_processes(folder)))
            write_private(folder / "kubeconfig", kubeconfig)
            write_private(folder / "stages.yaml", stages)
            supervisor.declare(_declared(folder, cluster, program, digest))
            self._running[cluster] = _Running(digest, stack.pop_all())

    def _folder(self, cluster: ObjectKey) -> Path:
        # A namespace has no dot in it, so no two clusters share a folder.
        return self._state / f"{cluster.namespace}.{cluster.name}"


def _processes(folder: Path) -> Path:
    return folder / "run"


def _declared(folder: Path, cluster: ObjectKey, program: Path, digest: str) -> Declared:
    address = address_of(f"kwok/{cluster}")
    port = _port(folder, address)
    return Declared(
        name=_NAME,
        command=Command(
            (
                *(sys.executable, "-m", keeper.__name__, str(folder / "kubeconfig")),
                str(program),
                f"--kubeconfig={folder / 'kubeconfig'}",
                f"--config={folder / 'stages.yaml'}",
                f"--manage-nodes-with-label-selector={keeper.KEPT_ALIVE}=fake",
                f"--node-lease-duration-seconds={_LEASE_SECONDS}",
                f"--server-address={address}:{port}",
            ),
            # Both files are read once, at the start: others make it another command.
            {"CAPELIN_FILES_SHA256": digest, "HOME": str(folder)},
        ),
        ready=partial(listening, address, port),
    )


def _port(folder: Path, address: str) -> int:
    """Where the process listens; with another port it would be another process."""
    file = folder / "port"
    if Process.adopt(_processes(folder), _NAME) is not None:
        return int(file.read_bytes())
    port = free_port(address)
    write_private(file, str(port).encode())
    return port
