"""Clusters and Machines that no controller changes, as large as real ones, for tests of scale."""

import asyncio
from collections.abc import Awaitable, Iterable
from datetime import UTC, datetime
from typing import Any

from capelin.api import Resource, Unstructured, crd
from capelin.api.capi import Cluster, Machine, MachinePool
from capelin.client import Client
from capelin_control_plane.api import CapelinControlPlane
from capelin_embedded.binaries import DEFAULT_KUBERNETES
from capelin_embedded.testing.administrator import cluster_api_crds

CLUSTERS = 100
MACHINES = 40
"""For each cluster but the first."""
LARGE = 1040
"""For the first cluster."""
TOTAL = LARGE + (CLUSTERS - 1) * MACHINES
VERSION = DEFAULT_KUBERNETES
POOL = "workers"
EVIL = '<img src="https://evil.example/x" onerror="document.title=1"><script>alert(1)</script>'
"""A message that must stay text."""
_AT_ONCE = 24
_LABEL = "cluster.x-k8s.io/cluster-name"
_CONDITIONS = (
    *("Available", "Ready", "UpToDate", "BootstrapConfigReady", "InfrastructureReady"),
    *("NodeHealthy", "NodeReady", "Deleting", "HealthCheckSucceeded", "Updating"),
)


async def definitions() -> list[Unstructured]:
    """CRDs without the subresource of the status, so that one request creates an object with it."""
    names = ("clusters", "machines", "machinepools", "machinedeployments")
    core = await cluster_api_crds(*(f"{name}.cluster.x-k8s.io" for name in names))
    found = [*core, crd(CapelinControlPlane)]
    for manifest in found:
        for version in manifest["spec"]["versions"]:
            version["subresources"].pop("status", None)
    return found


def condition(type_: str, status: str = "True", message: str = "") -> dict[str, Any]:
    return {
        "type": type_,
        "status": status,
        "reason": "Example",
        "message": message or "as it should be, in a message of an ordinary length",
        "lastTransitionTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }


def conditions(message: str = "") -> list[dict[str, Any]]:
    """The conditions of an object. With a message it is not available."""
    status = "False" if message else "True"
    summary = [condition(name, status, message) for name in ("Available", "Ready")]
    inactive = {"Deleting", "Updating"}
    others = [condition(name, "False" if name in inactive else "True") for name in _CONDITIONS[2:]]
    return [*summary, *others]


def cluster_name(number: int) -> str:
    return f"cluster-{number:03}"


def machine_name(cluster: str, number: int) -> str:
    return f"{cluster}-{number:04}"


class Fleet:
    """Creates the objects with their status, many at once."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self.namespace = namespace
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def create(self) -> None:
        await asyncio.gather(*(self._cluster(number) for number in range(CLUSTERS)))

    async def break_machine(self, cluster: str, number: int, message: str = "gone") -> None:
        """Change the status of a Machine to unhealthy."""
        status = {"status": {"conditions": conditions(message), "phase": "Failed"}}
        await self._client.patch(
            Machine.resource,
            machine_name(cluster, number),
            self.namespace,
            status,
        )

    async def break_machines(self, clusters: Iterable[int]) -> None:
        """Change the status of all Machines of some clusters."""

        async def broken(cluster: str, number: int) -> None:
            async with self._slots:
                await self.break_machine(cluster, number)

        await self._all(
            broken(cluster_name(cluster), number)
            for cluster in clusters
            for number in range(MACHINES)
        )

    async def _cluster(self, number: int) -> None:
        name, size = cluster_name(number), MACHINES if number else LARGE
        no_address = "the load balancer has no address" if number % 25 == 3 else ""
        unhealthy = EVIL if number == 7 else no_address
        reference = {
            "apiGroup": CapelinControlPlane.resource.group,
            "kind": CapelinControlPlane.resource.kind,
            "name": name,
        }
        await self._object(
            Cluster.resource,
            name,
            name,
            {
                "controlPlaneRef": reference,
                "topology": {"classRef": {"name": "fleet"}, "version": VERSION},
            },
            {"conditions": conditions(unhealthy), "phase": "Provisioned"},
        )
        await self._object(
            CapelinControlPlane.resource,
            name,
            name,
            {"version": VERSION},
            {"conditions": conditions(), "version": VERSION},
        )
        template = {
            "clusterName": name,
            "version": VERSION,
            "bootstrap": {"dataSecretName": "none"},
            "infrastructureRef": {**reference, "kind": "CapelinMachinePool"},
        }
        await self._object(
            MachinePool.resource,
            POOL,
            name,
            {"clusterName": name, "replicas": size, "template": {"spec": template}},
            {"readyReplicas": size, "replicas": size},
            suffix=name,
        )
        await self._all(self._machine(name, index, template) for index in range(size))

    async def _machine(self, cluster: str, index: int, template: dict[str, Any]) -> None:
        pool = {"cluster.x-k8s.io/pool-name": f"{POOL}-{cluster}"}
        await self._object(
            Machine.resource,
            machine_name(cluster, index),
            cluster,
            template,
            {"conditions": conditions(), "phase": "Running"},
            labels=pool,
        )

    async def _all(self, work: Iterable[Awaitable[None]]) -> None:
        await asyncio.gather(*work)

    async def _object(
        self,
        resource: Resource,
        name: str,
        cluster: str,
        spec: dict[str, Any],
        status: dict[str, Any],
        *,
        labels: dict[str, str] | None = None,
        suffix: str = "",
    ) -> None:
        name = f"{name}-{suffix}" if suffix else name
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": {_LABEL: cluster, **(labels or {})},
        }
        manifest: Unstructured = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata,
            "spec": spec,
            "status": status,
        }
        async with self._slots:
            await self._client.create(manifest, resource=resource)
