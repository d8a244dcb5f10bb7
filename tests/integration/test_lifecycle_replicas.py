"""Two replicas of the lifecycle extension under load: one is killed, and certificates rotate.

The tests call them as Cluster API would through a Service: a connection goes to a replica that
accepts it, in turn.
"""

import asyncio
import itertools
import logging
import os
import signal
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap
from capelin.client import Client
from capelin.runtime.v1alpha1 import BeforeClusterUpgrade
from capelin.testing.waiting import until
from capelin_lifecycle.actions.job import JOBS
from capelin_lifecycle.api import LifecyclePolicy, LifecycleResult
from capelin_lifecycle.policies.memory import CONFIG_MAP
from capelin_lifecycle.provider import provider
from capelin_lifecycle.reconcilers.registration import handler_name

from tests.calls import Connection, request_for
from tests.extensions import certificates, lifecycle

pytestmark = pytest.mark.timeout(300)

RATE = 200
CALLS = 2400
CONNECTIONS = 12
CLUSTERS = 60
CALLS_OF_A_CONNECTION = 40
"""Calls per connection. The next connection uses the current certificate."""
HOOK = BeforeClusterUpgrade.id.name

log = logging.getLogger(__name__)


@dataclass
class Load:
    """Calls two replicas at a steady rate."""

    ports: Sequence[int]
    trust: ssl.SSLContext
    requests: Sequence[bytes]
    sent: int = 0
    failures: list[int] = field(default_factory=list[int])
    """Ports of the connections on which a call failed."""
    unopened: list[int] = field(default_factory=list[int])
    """Ports of connections that failed before any call."""
    serial_numbers: list[str] = field(default_factory=list[str])
    """Serial numbers of the servers' certificates, in the order of the connections."""
    _turns: Iterator[int] = field(default_factory=itertools.count)

    async def reaches(self, share: float) -> None:
        """Wait until this share of all calls is done."""
        await until(lambda: self.sent >= share * CALLS)

    async def run(self) -> float:
        """Make all calls and return their rate per second."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        numbers = iter(range(CALLS))
        await asyncio.gather(*(self._work(numbers, began) for _ in range(CONNECTIONS)))
        return CALLS / (loop.time() - began)

    async def _work(self, numbers: Iterator[int], began: float) -> None:
        connection = await self._connect()
        for number in numbers:
            pause = began + number / RATE - asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, pause))
            if connection.is_over or connection.calls >= CALLS_OF_A_CONNECTION:
                await connection.close()
                connection = await self._connect()
            self.sent += 1
            # New Clusters arrive continuously, and existing ones repeat their calls.
            newest = number * len(self.requests) // CALLS
            asked = newest if number % 2 else number * 7919 % (newest + 1)
            request = self.requests[asked]
            try:
                response = await connection.call(request)
            except (OSError, EOFError):
                self.failures.append(connection.port)
                await connection.close()
                connection = await self._connect()
            else:
                assert response["status"] == "Success", response
                assert response["retryAfterSeconds"] > 0
        await connection.close()

    async def _connect(self) -> Connection:
        turn = next(self._turns) % len(self.ports)
        for port in [*self.ports[turn:], *self.ports[:turn]]:
            try:
                connection = await Connection.open(port, self.trust)
            except ConnectionRefusedError:
                # A Service omits endpoints that do not accept connections.
                continue
            except (OSError, EOFError):
                self.unopened.append(port)
                continue
            self.serial_numbers.append(connection.serial_number)
            return connection
        raise AssertionError("no replica accepts connections")


@dataclass
class Rotation:
    """The certificates of both replicas, each time with a new CA."""

    folder: Path
    trust: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    _prepared: list[Path] = field(default_factory=list[Path])

    def prepare(self, count: int) -> None:
        """Let callers trust all CAs from the start, like a bundle of old and new CAs."""
        for number in range(count):
            folder = self.folder / f"certificates-{number}"
            folder.mkdir()
            self.trust.load_verify_locations(cadata=certificates(folder).decode())
            self._prepared.append(folder)

    def rotate(self) -> None:
        """Install the next certificates."""
        folder = self._prepared.pop(0)
        for name in ("tls.key", "tls.crt"):
            (folder / name).replace(self.folder / name)


@pytest.fixture
async def requests(
    client: Client, namespace: str, install_crds: Any
) -> AsyncGenerator[list[bytes]]:
    """Requests about Clusters for which a policy runs a Job."""
    install_crds(provider())
    await client.apply(ConfigMap.of(CONFIG_MAP, client.config.namespace))
    pods = {"restartPolicy": "Never", "containers": [{"name": "tests", "image": "tests"}]}
    job = {"target": "Management", "template": {"template": {"spec": pods}}}
    await client.apply(
        {
            "apiVersion": LifecyclePolicy.resource.api_version,
            "kind": LifecyclePolicy.resource.kind,
            "metadata": {"name": "tests", "namespace": namespace},
            "spec": {"hook": HOOK, "action": {"job": job}},
        }
    )
    topology = {"classRef": {"name": "small"}, "version": "v1.34.4"}
    control_plane = {"apiGroup": "example.com", "kind": "ControlPlane", "name": "demo"}
    clusters = [
        await client.create(
            {
                "apiVersion": Cluster.resource.api_version,
                "kind": Cluster.resource.kind,
                "metadata": {"name": f"cluster-{number}", "namespace": namespace},
                "spec": {"topology": topology, "controlPlaneRef": control_plane},
            },
            resource=Cluster.resource,
        )
        for number in range(CLUSTERS)
    ]
    versions = {"fromKubernetesVersion": "v1.33.13", "toKubernetesVersion": "v1.34.4"}
    name = handler_name(HOOK, blocks=True)
    yield [
        request_for(BeforeClusterUpgrade, name, {"cluster": cluster, **versions})
        for cluster in clusters
    ]
    # No controller is running that would remove the finalizers.
    for kind in (LifecycleResult, LifecyclePolicy):
        for obj in (await client.list(kind, namespace)).items:
            await client.patch(kind, obj.name, namespace, {"metadata": {"finalizers": None}})
            await client.delete(kind, obj.name, namespace)


async def test_only_calls_in_flight_fail_and_each_action_runs_once(
    client: Client, kubeconfig: Path, namespace: str, requests: list[bytes], tmp_path: Path
) -> None:
    rotation = Rotation(tmp_path)
    rotation.prepare(3)
    rotation.rotate()
    events: Counter[tuple[str, str]] = Counter()
    listing = await client.list(JOBS, namespace)

    async def follow() -> None:
        async for event in client.watch(JOBS, namespace, since=listing.resource_version):
            events[event.type, event.object["metadata"]["name"]] += 1

    following = asyncio.create_task(follow())
    async with (
        lifecycle(tmp_path, kubeconfig, "left", "--leader-elect") as left,
        lifecycle(tmp_path, kubeconfig, "right", "--leader-elect") as right,
    ):
        replicas = {"left": left, "right": right}

        def leader() -> str | None:
            logs = {name: (tmp_path / f"{name}.log").read_text() for name in replicas}
            return next((name for name, log in logs.items() if "Leading: " in log), None)

        killed = replicas[await until(leader)]
        load = Load([left.port, right.port], rotation.trust, requests)
        loading = asyncio.create_task(load.run())
        await load.reaches(0.25)
        rotation.rotate()
        await load.reaches(0.5)
        os.kill(killed.pid, signal.SIGKILL)
        await load.reaches(0.75)
        rotation.rotate()
        rate = await loading

        async def results() -> list[LifecycleResult]:
            return (await client.list(LifecycleResult, namespace)).items

        def all_run(found: list[LifecycleResult]) -> bool:
            phases = [result.status.phase for result in found if result.status]
            return phases == ["Running"] * CLUSTERS

        await until(results, all_run)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    log.info("%.0f calls a second, %s of %s failed", rate, len(load.failures), CALLS)
    assert {*load.failures, *load.unopened} <= {killed.port}
    assert len(load.failures) <= CONNECTIONS
    assert len(dict.fromkeys(load.serial_numbers)) == 3
    created = {name: times for (type_, name), times in events.items() if type_ == "ADDED"}
    assert len(created) == CLUSTERS
    assert {*created.values()} == {1}
    assert not [name for type_, name in events if type_ == "DELETED"]
