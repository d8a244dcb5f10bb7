"""Runs KWOK, one process for each workload cluster, which keeps simulated Nodes ready."""

import asyncio
import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from capelin.client import safe_kubeconfig
from capelin.controller import ObjectKey
from capelin_embedded.addresses import address_of, free_port
from capelin_embedded.binaries import Binaries
from capelin_embedded.processes import (
    AlreadySupervisedError,
    Command,
    Process,
    ProcessSpec,
    Supervisor,
    SupervisorFailedError,
    private_folder,
    tcp_probe,
    write_private,
)

from capelin_machine_pool.backends import kwok_launcher

_LOGGER = logging.getLogger(__name__)
_NAME = "kwok"
_RETRY_SECONDS = 5.0
_LEASE_SECONDS = 80
"""KWOK renews a lease after a quarter of its duration, and does not retry a failed renewal sooner.
Kubernetes waits 50 s, so one renewal may fail, or the process may be replaced. Kubelets renew every
ten seconds, which costs half a core for a thousand Nodes."""

_READY_STAGE: dict[str, Any] = {
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
"""The only stage of a Node. Afterwards its lease shows that it is alive.

KWOK's default stages write each Node's status every twenty seconds in addition to the lease. With
a thousand Nodes, this would be most of the API server's work.
"""


@dataclass(slots=True, eq=False)
class _Supervised:
    """The process of a workload cluster, and the digests of its inputs."""

    source: str
    """Digest of the kubeconfig in the Secret."""
    digest: str
    """Digest of the files that the process has read."""
    supervisor: Supervisor
    stack: AsyncExitStack

    @property
    def works(self) -> bool:
        return self.supervisor.failure is None


class KwokProcesses:
    """KWOK processes by cluster. They outlive the provider, which adopts them when it restarts."""

    def __init__(self, state_folder: Path, binaries: Binaries) -> None:
        self._state_folder = state_folder
        self._binaries = binaries
        self._supervised: dict[ObjectKey, _Supervised] = {}
        self._watchers: dict[ObjectKey, asyncio.Task[None]] = {}
        self._locks: WeakValueDictionary[ObjectKey, asyncio.Lock] = WeakValueDictionary()

    async def ensure(self, cluster: ObjectKey, kubeconfig: bytes) -> None:
        """Run a process for a cluster, with this kubeconfig, which is not trusted.

        Raises:
            ConfigError: the kubeconfig cannot be used, or names a program or a file.
        """
        async with self._lock(cluster):
            await self._ensure(cluster, kubeconfig)

    async def refresh(self, read: Callable[[ObjectKey], Awaitable[bytes | None]]) -> None:
        """Give each process the kubeconfig of its cluster as it is now.

        After a rotation of the cluster's CAs, API servers reject the one that it started with.
        """
        for cluster in list(self._supervised):
            try:
                kubeconfig = await read(cluster)
                if kubeconfig is not None and cluster in self._supervised:
                    await self.ensure(cluster, kubeconfig)
            except Exception as error:  # noqa: BLE001 - the reconcile of a machine reports it
                _LOGGER.info("the kubeconfig of %s cannot be read again: %s", cluster, error)

    def clusters(self, namespace: str) -> list[ObjectKey]:
        """The clusters in a namespace that have a process, or had one that was not stopped."""
        prefix = f"{namespace}."
        names = (folder.name for folder in self._state_folder.glob(f"{prefix}*"))
        return [ObjectKey(namespace, name.removeprefix(prefix)) for name in sorted(names)]

    async def stop(self, cluster: ObjectKey) -> None:
        """Stop a cluster's process and delete its folder, unless another provider supervises it."""
        async with self._lock(cluster):
            await self.release(cluster)
            folder = self._folder(cluster)
            if not folder.exists():
                return
            with suppress(AlreadySupervisedError):
                async with Supervisor(_processes(folder)) as supervisor:
                    await supervisor.stop()
                    # Still under the supervisor's lock: another provider may share the folder.
                    shutil.rmtree(folder)

    async def release(self, cluster: ObjectKey) -> None:
        """Stop supervising a cluster's process without stopping it."""
        watcher = self._watchers.pop(cluster, None)
        if watcher is not None and watcher is not asyncio.current_task():
            watcher.cancel()
        supervised = self._supervised.pop(cluster, None)
        if supervised is not None:
            await supervised.stack.aclose()

    def failures(self) -> list[str]:
        """The clusters whose process is not supervised, and why."""
        failures: list[str] = []
        for cluster, supervised in self._supervised.items():
            try:
                _ = supervised.supervisor.states
            except SupervisorFailedError as error:
                failures.append(f"KWOK of {cluster}: {error}")
        return failures

    def _lock(self, cluster: ObjectKey) -> asyncio.Lock:
        """Stopping a process and downloading its program take long: other clusters do not wait."""
        return self._locks.setdefault(cluster, asyncio.Lock())

    async def _ensure(self, cluster: ObjectKey, kubeconfig: bytes) -> None:
        stages = json.dumps(_READY_STAGE).encode()
        source = hashlib.sha256(kubeconfig).hexdigest()
        supervised = self._supervised.get(cluster)
        if supervised is not None and supervised.works and supervised.source == source:
            return
        # KWOK parses YAML in another way. In the bytes of a tenant it may find a program to run
        # where the check of this provider found none.
        kubeconfig = safe_kubeconfig(kubeconfig, name=cluster.name)
        digest = hashlib.sha256(stages + kubeconfig).hexdigest()
        if supervised is not None and supervised.works and supervised.digest == digest:
            supervised.source = source
            return
        program = await self._binaries.path("kwok")
        folder = private_folder(self._folder(cluster))
        await self.release(cluster)
        async with AsyncExitStack() as stack:
            supervisor = await stack.enter_async_context(Supervisor(_processes(folder)))
            write_private(folder / "kubeconfig", kubeconfig)
            write_private(folder / "stages.yaml", stages)
            supervisor.declare(_declared(folder, cluster, program, digest))
            supervised = _Supervised(source, digest, supervisor, stack.pop_all())
        self._supervised[cluster] = supervised
        self._watchers[cluster] = asyncio.create_task(
            self._watch(cluster, supervisor, kubeconfig), name=f"watch of KWOK of {cluster}"
        )

    async def _watch(self, cluster: ObjectKey, supervisor: Supervisor, kubeconfig: bytes) -> None:
        """Supervise a process again when its supervisor has failed, for example on a full disk."""
        with suppress(SupervisorFailedError):
            async for _ in supervisor.changes():
                pass
        while True:
            # The cause of the failure may last for a while.
            await asyncio.sleep(_RETRY_SECONDS)
            async with self._lock(cluster):
                try:
                    await self._ensure(cluster, kubeconfig)
                except OSError as error:
                    _LOGGER.warning("KWOK of %s cannot be supervised yet: %s", cluster, error)
                else:
                    return

    def _folder(self, cluster: ObjectKey) -> Path:
        # A namespace contains no dot, so no two clusters share a folder.
        return self._state_folder / f"{cluster.namespace}.{cluster.name}"


def _processes(folder: Path) -> Path:
    return folder / "run"


def _declared(folder: Path, cluster: ObjectKey, program: Path, digest: str) -> ProcessSpec:
    address = address_of(f"kwok/{cluster}")
    port = _port(folder, address)
    return ProcessSpec(
        name=_NAME,
        command=Command(
            (
                *(sys.executable, "-m", kwok_launcher.__name__, str(folder / "kubeconfig")),
                str(program),
                f"--kubeconfig={folder / 'kubeconfig'}",
                f"--config={folder / 'stages.yaml'}",
                f"--manage-nodes-with-label-selector={kwok_launcher.MANAGED_LABEL}=fake",
                f"--node-lease-duration-seconds={_LEASE_SECONDS}",
                f"--server-address={address}:{port}",
            ),
            # KWOK reads both files only when it starts: a change of them has to change the command.
            {"CAPELIN_FILES_SHA256": digest, "HOME": str(folder)},
        ),
        readiness=partial(tcp_probe, address, port),
    )


def _port(folder: Path, address: str) -> int:
    """The port of the process. It must not change while the process runs."""
    file = folder / "port"
    if Process.adopt(_processes(folder), _NAME) is not None:
        return int(file.read_bytes())
    port = free_port(address)
    write_private(file, str(port).encode())
    return port
