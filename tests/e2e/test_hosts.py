"""Hosts join a Capelin control plane with the kubeadm bootstrap provider, and run pods.

The management cluster, Cluster API and the control plane are processes of this machine.
"""

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import asyncssh
import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster, MachinePool
from capelin.api.core import Namespace, Node, Secret
from capelin.client import Client, Config
from capelin.embedded.binaries import TESTED_KUBERNETES
from capelin.testing.management import removed, started
from capelin.testing.waiting import until
from capelin.yaml import read_all_yaml
from capelin_machine_pool.hosts.api import CapelinHost

from tests.integration.pools import POOL, cluster_manifests, pool_manifests
from tests.support.control_planes import ControlPlane

from . import host_containers
from .host_containers import HostContainer, network
from .machines import (
    KUBECTL,
    KUBELET,
    POD_CIDR,
    all_run,
    docker,
    node_is_ready,
    use,
    web,
    web_service,
)

VERSION = TESTED_KUBERNETES[-1]
COUNT = 3
Record = Callable[[str, object], None]

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(host_containers.missing()), reason=host_containers.missing()),
    pytest.mark.needs_programs(
        "etcd",
        "cluster-api-controller",
        "kubeadm-bootstrap-controller",
        f"kubectl@{KUBECTL}",
        *(
            f"{program}@{VERSION}"
            for program in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
        ),
    ),
]


@dataclass(frozen=True)
class HostCluster(ControlPlane):
    """A cluster whose machines are hosts."""

    async def hosts(self) -> dict[str, str | None]:
        """The phase of each host."""
        found = (await self.client.list(CapelinHost, self.namespace)).items
        return {host.name: host.status.phase if host.status else None for host in found}

    async def scale(self, replicas: int) -> None:
        await self.client.patch(MachinePool, POOL, self.namespace, {"spec": {"replicas": replicas}})

    async def delete(self) -> None:
        """Delete the Cluster with its machines, and wait."""
        await self.client.delete(Cluster, self.name, self.namespace)

        async def is_gone() -> bool:
            return await self.client.find(Cluster, self.name, self.namespace) is None

        await until(is_gone, within=300)


@asynccontextmanager
async def management(folder: Path) -> AsyncGenerator[Client]:
    """A management cluster of its own."""
    environment = (await started(folder)).environment
    try:
        async with Client(Config.from_kubeconfig(environment.kubeconfig), manager="e2e") as client:
            yield client
    finally:
        await removed(folder)


async def test_hosts_join_run_pods_and_return_clean(
    tmp_path: Path, record_property: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"hosts-{uuid4().hex[:6]}"
    user = asyncssh.generate_private_key("ssh-ed25519")  # pyright: ignore[reportUnknownMemberType]
    async with (
        network(name) as gateway,
        host_containers.host_containers(name, COUNT, user) as hosts,
    ):
        # Control planes may listen in the network of the hosts.
        monkeypatch.setenv("CAPELIN_ENDPOINT_NETWORKS", gateway)
        async with management(tmp_path / "management") as client:
            await client.create(Namespace.of(name))
            await add_hosts(client, name, hosts, user)
            cluster = HostCluster(client, name, "demo", "Processes")
            await create(cluster, hosts[0].name, gateway, port=6443)
            async with cluster.workload() as workload:
                await scale(cluster, workload, hosts, tmp_path, record_property)
            await return_all(cluster, hosts)
            # The same hosts join another cluster.
            other = HostCluster(client, name, "other", "Processes")
            await create(other, hosts[0].name, gateway, port=6444)
            async with other.workload() as workload:
                await add_pod_network(workload, hosts[0].name)
                await scale_to(other, workload, 2)
            await return_all(other, hosts)


async def return_all(cluster: HostCluster, hosts: Sequence[HostContainer]) -> None:
    """Delete a cluster. Its hosts are as before their first bootstrap."""
    await cluster.delete()
    await until(cluster.hosts, lambda found: set(found.values()) == {"Free"}, within=300)
    for host in hosts:
        assert await host.state() ^ host.fresh == set()


async def scale(
    cluster: HostCluster,
    workload: Client,
    hosts: list[HostContainer],
    folder: Path,
    record: Record,
) -> None:
    """Use pods on three hosts, return two of them, and claim them again."""
    await add_pod_network(workload, hosts[0].name)
    began = monotonic()
    await scale_to(cluster, workload, COUNT)
    record(f"seconds: {COUNT} hosts to Ready nodes", round(monotonic() - began, 1))
    await run_pods(workload, hosts[0].name)
    await use(cluster, workload, COUNT, folder)
    began = monotonic()
    await scale_to(cluster, workload, 1)
    await until(cluster.hosts, lambda found: list(found.values()).count("Free") == COUNT - 1)
    record(f"seconds: {COUNT - 1} hosts released and clean", round(monotonic() - began, 1))
    phases = await cluster.hosts()
    for host in hosts:
        if phases[host.name] == "Free":
            assert await host.state() ^ host.fresh == set()
    await scale_to(cluster, workload, COUNT)


async def add_hosts(
    client: Client, namespace: str, hosts: Sequence[HostContainer], user: asyncssh.SSHKey
) -> None:
    """Create the objects of hosts."""
    key = {"ssh-privatekey": user.export_private_key()}
    await client.create(Secret.of("ssh", namespace, data=key))
    for host in hosts:
        await client.create(host_manifest(host, namespace), resource=CapelinHost.resource)


async def create(cluster: HostCluster, machine: str, gateway: str, *, port: int) -> None:
    """Create a control plane and an empty pool, and wait for the control plane."""
    client, namespace = cluster.client, cluster.namespace
    images = await images_of(machine)
    addons = {
        "coreDNS": {"image": next(tag for tag in images if "/coredns:" in tag)},
        "kubeProxy": {
            "image": next(tag for tag in images if "/kube-proxy:" in tag),
            # Containers may not change settings of the kernel.
            "conntrackMaxPerCore": 0,
        },
    }
    for manifest in cluster_manifests(cluster.name, namespace, addons=addons):
        if manifest["kind"] == "Cluster":
            manifest["spec"]["controlPlaneEndpoint"] = {"host": gateway, "port": port}
            manifest["spec"]["clusterNetwork"]["pods"] = {"cidrBlocks": [POD_CIDR]}
        await client.apply(manifest)
    spec = {"backend": "Hosts", "hosts": {"matchLabels": {"role": "worker"}}}
    for manifest in pool_manifests(cluster.name, namespace, replicas=0, version=VERSION, spec=spec):
        if manifest["kind"] == "KubeadmConfig":
            manifest["spec"]["joinConfiguration"]["nodeRegistration"] |= {
                # A container fails preflight checks.
                "ignorePreflightErrors": ["all"],
                "kubeletExtraArgs": [
                    {"name": flag, "value": value} for flag, value in KUBELET.items()
                ],
            }
        await client.apply(manifest)
    await until(cluster.is_initialized, within=240)
    await until(cluster.hosts, lambda found: set(found.values()) == {"Free"}, within=120)


def host_manifest(host: HostContainer, namespace: str) -> Unstructured:
    return {
        "apiVersion": CapelinHost.resource.api_version,
        "kind": "CapelinHost",
        "metadata": {"name": host.name, "namespace": namespace, "labels": {"role": "worker"}},
        "spec": {
            "address": host.address,
            "credentials": {"secretName": "ssh"},
            "hostKeys": [host.host_key],
        },
    }


async def add_pod_network(workload: Client, machine: str) -> None:
    """Add the pod network of kind's node image."""
    text = await docker("exec", machine, "cat", "/kind/manifests/default-cni.yaml")
    for manifest in read_all_yaml(text.replace("{{ .PodSubnet }}", POD_CIDR)):
        await workload.apply(manifest)


async def scale_to(cluster: HostCluster, workload: Client, count: int) -> None:
    """Scale the pool and wait until exactly this many nodes are ready."""
    await cluster.scale(count)

    async def nodes() -> list[Node]:
        return (await workload.list(Node)).items

    await until(
        nodes, lambda found: len(found) == count and all(map(node_is_ready, found)), within=420
    )


async def run_pods(workload: Client, machine: str) -> None:
    """Run a pod on each node, behind one service."""
    helper = next(tag for tag in await images_of(machine) if "local-path-helper" in tag)
    nodes = (await workload.list(Node)).items
    for index, node in enumerate(nodes):
        await workload.apply(web(f"web-{index}", helper, node=node.name))
    await workload.apply(web_service())
    await until(lambda: all_run(workload, len(nodes)), within=240)


async def images_of(machine: str) -> list[str]:
    """The images that a host has already."""
    listed: Any = json.loads(await docker("exec", machine, "crictl", "images", "--output=json"))
    return [tag for image in listed["images"] for tag in image["repoTags"]]
