"""Clusters whose machines are hosts. Cluster API and the control plane are local processes."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from capelin.api import Unstructured
from capelin.api.capi import MachinePool
from capelin.api.core import Secret
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin.yaml import read_all_yaml
from capelin_embedded.testing.management import removed, started
from capelin_machine_pool.hosts.api import CapelinHost

from tests.integration.pools import POOL, cluster_manifests, pool_manifests
from tests.support.control_planes import ControlPlane

from . import host_containers
from .host_containers import HostContainer
from .machines import KUBELET, POD_CIDR, docker


def marks(*versions: str) -> list[pytest.MarkDecorator]:
    """The marks of tests with hosts and control planes of these Kubernetes versions."""
    programs = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    return [
        pytest.mark.skipif(bool(host_containers.missing()), reason=host_containers.missing()),
        pytest.mark.needs_programs(
            *("etcd", "cluster-api-controller", "kubeadm-bootstrap-controller"),
            *(f"{program}@{version}" for program in programs for version in versions),
        ),
    ]


@dataclass(frozen=True)
class HostCluster(ControlPlane):
    """A cluster whose machines are hosts."""

    async def hosts(self) -> dict[str, str | None]:
        """The phase of each host."""
        found = (await self.client.list(CapelinHost, self.namespace)).items
        return {host.name: host.status.phase if host.status else None for host in found}

    async def reports(self) -> dict[str, str]:
        """The phase of each host, and the messages of its conditions."""
        found = (await self.client.list(CapelinHost, self.namespace)).items
        return {
            host.name: ": ".join(
                filter(None, [host.status.phase, *(it.message for it in host.status.conditions)])
            )
            for host in found
            if host.status
        }

    async def scale(self, replicas: int) -> None:
        await self.client.patch(MachinePool, POOL, self.namespace, {"spec": {"replicas": replicas}})


@asynccontextmanager
async def management(folder: Path) -> AsyncGenerator[Client]:
    """A management cluster of its own."""
    environment = (await started(folder)).environment
    try:
        async with Client(Config.from_kubeconfig(environment.kubeconfig), manager="e2e") as client:
            yield client
    finally:
        await removed(folder)


async def return_all(cluster: HostCluster, hosts: Sequence[HostContainer]) -> None:
    """Delete a cluster. Its hosts are as before their first bootstrap."""
    await cluster.delete_cluster()
    await until(
        cluster.reports,
        lambda found: all(text.startswith("Free") for text in found.values()),
        within=300,
    )
    for host in hosts:
        difference = sorted(await host.state() ^ host.fresh)
        assert not difference, "\n".join([host.name, *difference, await host.clean_output()])


async def add_credentials(client: Client, namespace: str, user: asyncssh.SSHKey) -> None:
    """Create the Secret with the key of the hosts' user."""
    key = {"ssh-privatekey": user.export_private_key()}
    await client.create(Secret.of("ssh", namespace, data=key))


async def add_hosts(
    client: Client, namespace: str, hosts: Sequence[HostContainer], role: str = "worker"
) -> None:
    """Create the objects of hosts."""
    for host in hosts:
        await client.create(host_manifest(host, namespace, role), resource=CapelinHost.resource)


async def create_control_plane(
    cluster: HostCluster, machine: str, gateway: str, *, port: int, version: str
) -> None:
    """Create a control plane, and wait until it and all hosts are ready for use."""
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
        if manifest["kind"] == "CapelinControlPlane":
            manifest["spec"]["version"] = version
        await client.apply(manifest)
    await until(cluster.is_initialized, within=240)
    await until(cluster.hosts, lambda found: set(found.values()) == {"Free"}, within=120)


async def create_pool(
    cluster: HostCluster,
    *,
    version: str,
    name: str = POOL,
    role: str = "worker",
    replicas: int = 0,
    hosts: dict[str, Any] | None = None,
    **spec: Any,
) -> None:
    """Create a pool whose Nodes have the label `role`."""
    spec |= {"backend": "Hosts", "hosts": {"matchLabels": {"role": role}, **(hosts or {})}}
    flags = {**KUBELET, "node-labels": f"role={role}"}
    manifests = pool_manifests(
        cluster.name, cluster.namespace, replicas=replicas, version=version, spec=spec
    )
    for manifest in manifests:
        if manifest["kind"] == "KubeadmConfig":
            manifest["spec"]["joinConfiguration"]["nodeRegistration"] |= {
                # A container fails preflight checks.
                "ignorePreflightErrors": ["all"],
                "kubeletExtraArgs": [{"name": flag, "value": text} for flag, text in flags.items()],
            }
        manifest["metadata"] = {**manifest["metadata"], "name": name}
        if manifest["kind"] == "MachinePool":
            template = manifest["spec"]["template"]["spec"]
            template["bootstrap"]["configRef"]["name"] = name
            template["infrastructureRef"]["name"] = name
        await cluster.client.apply(manifest)


def host_manifest(host: HostContainer, namespace: str, role: str) -> Unstructured:
    return {
        "apiVersion": CapelinHost.resource.api_version,
        "kind": "CapelinHost",
        "metadata": {"name": host.name, "namespace": namespace, "labels": {"role": role}},
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


async def images_of(machine: str) -> list[str]:
    """The images that a host has already."""
    listed: Any = json.loads(await docker("exec", machine, "crictl", "images", "--output=json"))
    return [tag for image in listed["images"] for tag in image["repoTags"]]
