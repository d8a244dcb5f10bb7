"""Hosts join a Capelin control plane with the kubeadm bootstrap provider, and run pods.

The management cluster, Cluster API and the control plane are processes of this machine.
"""

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from uuid import uuid4

import asyncssh
import pytest
from capelin.api.capi import Cluster
from capelin.api.core import Namespace, Node
from capelin.client import Client
from capelin.testing.waiting import until
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_machine_pool.hosts.api import CLEAN_AGAIN_ANNOTATION, CapelinHost

from . import host_containers
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
from .machines import (
    KUBECTL,
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
    pytest.mark.needs_programs(f"kubectl@{KUBECTL}"),
    *marks(VERSION),
]


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
            await add_credentials(client, name, user)
            await add_hosts(client, name, hosts)
            cluster = HostCluster(client, name, "demo", "Processes")
            await create(cluster, hosts[0].name, gateway, port=6443)
            async with cluster.workload() as workload:
                await scale(cluster, workload, hosts, tmp_path, record_property)
            await return_all(cluster, hosts)
            # The same hosts join two others, one after the other.
            for number, later in enumerate(("second", "third")):
                cluster = HostCluster(client, name, later, "Processes")
                await create(cluster, hosts[0].name, gateway, port=6444 + number)
                async with cluster.workload() as workload:
                    await add_pod_network(workload, hosts[0].name)
                    await scale_to(cluster, workload, COUNT)
                    # They are starting when the cluster is deleted.
                    await start_pods(workload, hosts[0].name)
                if later == "third":
                    await fail_to_clean(cluster, hosts[0])
                await return_all(cluster, hosts)


async def create(cluster: HostCluster, machine: str, gateway: str, *, port: int) -> None:
    """Create a control plane and an empty pool."""
    await create_control_plane(cluster, machine, gateway, port=port, version=VERSION)
    await create_pool(cluster, version=VERSION)


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


async def scale_to(cluster: HostCluster, workload: Client, count: int) -> None:
    """Scale the pool and wait until exactly this many nodes are ready."""
    await cluster.scale(count)

    async def nodes() -> list[Node]:
        return (await workload.list(Node)).items

    await until(
        nodes, lambda found: len(found) == count and all(map(node_is_ready, found)), within=420
    )


async def fail_to_clean(cluster: HostCluster, host: HostContainer) -> None:
    """Delete a cluster. A host whose crictl fails is Broken, until a person has repaired it."""
    crictl = (await docker("exec", host.name, "which", "crictl")).strip()
    script = (
        f"mv {crictl} /crictl && printf '#!/bin/sh\\necho no runtime >&2\\nexit 1\\n' >{crictl}"
    )
    await docker("exec", host.name, "sh", "-c", f"{script} && chmod 755 {crictl}")
    await cluster.client.delete(Cluster, cluster.name, cluster.namespace)

    reports = await until(
        cluster.reports, lambda found: found[host.name].startswith("Broken"), within=300
    )
    assert "no runtime" in reports[host.name]
    await docker("exec", host.name, "mv", "/crictl", crictl)
    again = {"metadata": {"annotations": {CLEAN_AGAIN_ANNOTATION: ""}}}
    await cluster.client.patch(CapelinHost, host.name, cluster.namespace, again)


async def run_pods(workload: Client, machine: str) -> None:
    """Run a pod on each node, behind one service."""
    count = await start_pods(workload, machine)
    await until(lambda: all_run(workload, count), within=240)


async def start_pods(workload: Client, machine: str) -> int:
    """Create a pod on each node, behind one service. Returns their number."""
    helper = next(tag for tag in await images_of(machine) if "local-path-helper" in tag)
    nodes = (await workload.list(Node)).items
    for index, node in enumerate(nodes):
        await workload.apply(web(f"web-{index}", helper, node=node.name))
    await workload.apply(web_service())
    return len(nodes)
