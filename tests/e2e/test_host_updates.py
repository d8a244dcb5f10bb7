"""Pools of hosts get the next minor version, in place and by replacement, below a busy service."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import asyncssh
import pytest
from capelin.api import Unstructured
from capelin.api.capi import Machine, MachinePool
from capelin.api.core import Namespace, Node, Pod
from capelin.client import Client
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_machine_pool.api import CapelinMachine, CapelinMachinePool

from tests.integration.pools import POOL
from tests.support.archives import add_archive

from . import host_containers
from .calls import Calls, called
from .go_programs import PROGRAMS, node_programs
from .host_clusters import (
    HostCluster,
    add_credentials,
    add_hosts,
    add_pod_network,
    create_control_plane,
    create_pool,
    images_of,
    management,
    marks,
    return_all,
)
from .host_containers import HostContainer, network
from .hosted import is_ready
from .machines import docker, node_is_ready

OLD, NEW = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
REPLICAS = 3
FRONT = "front"
NODE_PORT = 30080
Record = Callable[[str, object], None]

pytestmark = [pytest.mark.timeout(2400), *marks(OLD, NEW)]


async def test_service_answers_while_its_hosts_are_updated(
    tmp_path: Path, record_property: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"updates-{uuid4().hex[:6]}"
    user = asyncssh.generate_private_key("ssh-ed25519")  # pyright: ignore[reportUnknownMemberType]
    async with (
        network(name) as gateway,
        host_containers.host_containers(name, REPLICAS + 1, user) as hosts,
    ):
        archives = tmp_path / "archives"
        await write_archives(archives, hosts[0].name)
        monkeypatch.setenv("CAPELIN_ENDPOINT_NETWORKS", gateway)
        monkeypatch.setenv("CAPELIN_HOST_BUNDLES", str(archives))
        async with management(tmp_path / "management") as client:
            await client.create(Namespace.of(name))
            await add_credentials(client, name, user)
            await add_hosts(client, name, hosts[1:])
            await add_hosts(client, name, hosts[:1], FRONT)
            cluster = HostCluster(client, name, "demo", "Processes")
            await create_control_plane(cluster, hosts[0].name, gateway, port=6443, version=OLD)
            bundle = {"profile": "Bundle"}
            await create_pool(
                cluster, version=OLD, name=FRONT, role=FRONT, replicas=1, hosts=bundle
            )
            rolling = {"method": "InPlace", "maxUnavailable": 1}
            await create_pool(
                cluster, version=OLD, replicas=REPLICAS, hosts=bundle, rollingUpdate=rolling
            )
            async with cluster.workload() as workload:
                world = Updates(cluster, workload, hosts, record_property)
                await world.start()
                await world.update_in_place()
                await world.replace()
            await return_all(cluster, hosts)
            for host in hosts:
                # The programs from before the first bootstrap.
                assert NEW in await docker("exec", host.name, "kubelet", "--version")


async def write_archives(folder: Path, machine: str) -> None:
    """Archives of the older version, and of the version in the node image."""
    older = await node_programs(OLD)
    add_archive(folder, OLD, {f"usr/bin/{name}": content for name, content in older.items()})
    newer: dict[str, bytes] = {}
    for name in PROGRAMS:
        copy = folder.parent / name
        await docker("cp", f"{machine}:/usr/bin/{name}", str(copy))
        newer[f"usr/bin/{name}"] = copy.read_bytes()
    add_archive(folder, NEW, newer)


@dataclass
class Updates:
    """A cluster whose service answers calls while its machines change."""

    cluster: HostCluster
    workload: Client
    hosts: Sequence[HostContainer]
    record: Record

    @property
    def front(self) -> HostContainer:
        """The host whose Node keeps its version and receives the calls."""
        return self.hosts[0]

    async def start(self) -> None:
        """Run the Deployment on all hosts of the pool, and upgrade the control plane."""
        await add_pod_network(self.workload, self.front.name)
        await until(self.nodes, lambda found: len(found) == REPLICAS + 1, within=420)
        await until(self.are_all, lambda version: version == OLD, within=420)
        images = await images_of(self.front.name)
        helper = next(tag for tag in images if "local-path-helper" in tag)
        for manifest in service(helper):
            await self.workload.apply(manifest)
        await until(self.pods_are_ready, within=240)
        patch = {"spec": {"version": NEW}}
        client, namespace = self.cluster.client, self.cluster.namespace
        await client.patch(CapelinControlPlane, self.cluster.name, namespace, patch)

        async def is_upgraded() -> bool:
            found = await client.get(CapelinControlPlane, self.cluster.name, namespace)
            return found.status is not None and found.status.version == NEW

        await until(is_upgraded, within=600)

    async def update_in_place(self) -> None:
        """Update the pool to the next minor version. All machines stay."""
        before = await self.machines()
        uids = {node.name: node.uid for node in await self.nodes()}
        async with called(self.url) as calls:
            seconds = await self.roll(NEW)
        self.report("in place", calls, seconds)
        assert await self.machines() == before
        assert {node.name: node.uid for node in await self.nodes()} == uids

    async def replace(self) -> None:
        """Replace the machines by those of the older version, and of the newer one again."""
        client, namespace = self.cluster.client, self.cluster.namespace
        patch = {"spec": {"rollingUpdate": {"method": "Replace", "maxSurge": 0}}}
        await client.patch(CapelinMachinePool, POOL, namespace, patch)
        before = await self.machines()
        async with called(self.url) as calls:
            await self.roll(OLD)
            seconds = await self.roll(NEW)
        self.report("replaced", calls, seconds)
        assert not set(await self.machines()) & set(before)

    async def roll(self, version: str) -> float:
        """Change the version of the pool, and wait until all machines have it.

        Returns:
            The duration in seconds.
        """
        began, fewest = monotonic(), REPLICAS
        template = {"spec": {"template": {"spec": {"version": version}}}}
        await self.cluster.client.patch(MachinePool, POOL, self.cluster.namespace, template)

        async def progress() -> dict[str, object]:
            nonlocal fewest
            nodes = [node for node in await self.nodes() if is_worker(node)]
            fewest = min(fewest, sum(map(is_open, nodes)))
            if await self.are_all() == version and await self.is_counted(version):
                return {}
            reports = await self.cluster.reports()
            broken = [it for it in self.hosts if reports[it.name].startswith("Broken")]
            shown = [f"{reports[it.name]}\n{await it.clean_output()}" for it in broken]
            assert not broken, "\n".join(shown)
            # If the time is over, the wait shows this.
            return {
                "nodes": {it.name: (version_of(it), is_open(it)) for it in nodes},
                "machines": list((await self.machines()).values()),
                "hosts": reports,
                "pool": await self.obstacles(),
            }

        await until(progress, lambda open_work: not open_work, within=900)
        assert fewest >= REPLICAS - 1
        return round(monotonic() - began, 1)

    async def is_counted(self, version: str) -> bool:
        """Whether Cluster API and the provider report the version for each machine."""
        client, namespace = self.cluster.client, self.cluster.namespace
        status = (await client.get(MachinePool, POOL, namespace)).status
        counts = {entry.version: entry.replicas for entry in status.versions}
        infrastructure = await client.get(CapelinMachinePool, POOL, namespace)
        conditions = infrastructure.status.conditions if infrastructure.status else []
        is_true = {it.type for it in conditions if it.status == "True"}
        return (
            counts == {version: REPLICAS}
            and status.up_to_date_replicas == REPLICAS
            and is_true >= {"Ready", "UpToDate"}
        )

    async def obstacles(self) -> dict[str, str]:
        """The conditions that are not True, of the pool and of its machines."""
        client, namespace = self.cluster.client, self.cluster.namespace
        pools = (await client.list(CapelinMachinePool, namespace)).items
        machines = (await client.list(CapelinMachine, namespace)).items
        return {
            f"{it.name}: {condition.type}": condition.message
            for it in (*pools, *machines)
            for condition in (it.status.conditions if it.status else [])
            if condition.status != "True"
        }

    def report(self, what: str, calls: Calls, seconds: float) -> None:
        self.record(f"seconds: {REPLICAS} hosts to the next minor version, {what}", seconds)
        self.record(f"calls: {what}", calls.total)
        self.record(f"seconds: slowest call, {what}", round(calls.slowest, 2))
        assert calls.failures == []
        assert calls.total > 20 * seconds * 0.8

    @property
    def url(self) -> str:
        return f"http://{self.front.address}:{NODE_PORT}/"

    async def nodes(self) -> list[Node]:
        return (await self.workload.list(Node)).items

    async def machines(self) -> dict[str, str]:
        """The machines of the pool with their UIDs."""
        namespace = self.cluster.namespace
        found = [
            *(await self.cluster.client.list(Machine, namespace)).items,
            *(await self.cluster.client.list(CapelinMachine, namespace)).items,
        ]
        return {it.uid: it.name for it in found if it.name.startswith(POOL)}

    async def are_all(self) -> str | None:
        """The version of all open Nodes of the pool, if it is the same one."""
        nodes = [node for node in await self.nodes() if is_worker(node)]
        versions = set(map(version_of, nodes))
        if len(nodes) != REPLICAS or not all(map(is_open, nodes)) or len(versions) != 1:
            return None
        return versions.pop()

    async def pods_are_ready(self) -> bool:
        pods = (await self.workload.list(Pod, "default", labels={"app": "web"})).items
        return len(pods) == REPLICAS and all(map(is_ready, pods))


def is_worker(node: Node) -> bool:
    return node.metadata.labels.get("role") == "worker"


def is_open(node: Node) -> bool:
    return node_is_ready(node) and not node.spec.unschedulable


def version_of(node: Node) -> str | None:
    return node.status.node_info.kubelet_version


def service(image: str) -> list[Unstructured]:
    """A Deployment that stops gently, its budget and its service."""
    script = "mkdir /www; echo shoal >/www/index.html; exec busybox httpd -f -p 8080 -h /www"
    labels = {"app": "web"}
    container: dict[str, Any] = {
        "name": "web",
        "image": image,
        "command": ["/bin/busybox", "sh", "-c", script],
        "readinessProbe": {
            "httpGet": {"path": "/", "port": 8080},
            # Other nodes add routes to the pods of a new one every ten seconds.
            "initialDelaySeconds": 15,
            "periodSeconds": 1,
        },
        # Until every Node has removed the pod from the service.
        "lifecycle": {"preStop": {"sleep": {"seconds": 8}}},
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    pod = {
        "nodeSelector": {"role": "worker"},
        "terminationGracePeriodSeconds": 15,
        "topologySpreadConstraints": [spread],
        "containers": [container],
    }
    metadata = {"name": "web", "namespace": "default"}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": REPLICAS,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata,
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "type": "NodePort",
                "selector": labels,
                "ports": [{"port": 80, "targetPort": 8080, "nodePort": NODE_PORT}],
            },
        },
    ]
