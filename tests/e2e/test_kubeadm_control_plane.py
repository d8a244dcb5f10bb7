"""Cluster API's own KubeadmControlPlane, with machines of the backend `Containers`.

The test forwards connections from the Cluster's endpoint to the API servers in the containers.
"""

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

import pytest
from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace, Node
from capelin.client import Client, ClientError, Config
from capelin.testing.waiting import until
from capelin_cli.clusters.demo import node_addons
from capelin_cli.clusters.topology import MACHINES_LABEL, POD_NETWORK
from capelin_cli.environments.containers import ContainerMachines
from capelin_embedded.addresses import free_port
from capelin_embedded.management import UpRequest, required_programs
from capelin_machine_pool.api import CapelinCluster, CapelinMachineTemplate
from capelin_machine_pool.containers.desired import CLUSTER_LABEL, MACHINE_LABEL
from capelin_machine_pool.containers.engine import Container

from tests.integration.homes import Home
from tests.integration.pools import reference
from tests.support.control_planes import ControlPlane

from .container_environment import container_environment, helper_image
from .container_machines import ENGINE, machine_deployment
from .kind_cluster import IMAGE, IMAGE_VERSION
from .machines import KUBECTL, all_run, node_is_ready, use, web, web_service
from .relay import relay

NAMESPACE, NAME = "kubeadm", "sardine"
CONTROL_PLANE = f"{NAME}-control-plane"
KCP = Resource(
    "controlplane.cluster.x-k8s.io", "v1beta2", "KubeadmControlPlane", "kubeadmcontrolplanes"
)
MEMBERS = 3
# Containers cannot change the limits of the kernel. Members that join do not read the file.
KUBE_PROXY = (
    r"printf -- '---\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
    r"conntrack: {maxPerCore: 0}\n' >>/run/kubeadm/kubeadm.yaml"
)
Record = Callable[[str, object], None]

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.needs_programs(*required_programs(KUBECTL, ("kubeadm",)), f"kubectl@{KUBECTL}"),
]


class KubeadmCluster(ControlPlane):
    """A Cluster with a KubeadmControlPlane."""

    async def replicas(self) -> int:
        """How many members are ready, or 0 while others exist."""
        status = (await self.client.get(KCP, CONTROL_PLANE, self.namespace)).get("status", {})
        ready = status.get("readyReplicas", 0)
        return ready if status.get("replicas") == ready else 0

    async def scale(self, replicas: int) -> None:
        patch = {"spec": {"replicas": replicas}}
        await self.client.patch(KCP, CONTROL_PLANE, self.namespace, patch)

    async def ready_nodes(self) -> list[str]:
        """The Ready Nodes. None before an API server responds."""
        try:
            async with self.workload() as workload:
                nodes = (await workload.list(Node)).items
        except ClientError:
            return []
        return sorted(node.name for node in nodes if node_is_ready(node))

    async def members(self) -> Sequence[str]:
        """The addresses of the containers of its control plane."""
        prefix = f"{self.namespace}/{CONTROL_PLANE}-"
        return [
            container.addresses[0]
            for container in await self.containers()
            if container.labels[MACHINE_LABEL].startswith(prefix) and container.addresses
        ]

    async def containers(self) -> list[Container]:
        """The containers of its machines."""
        clusters = await ENGINE.labelled(CLUSTER_LABEL)
        key = f"{self.namespace}/{self.name}"
        own = [id_ for id_, cluster in clusters.items() if cluster == key]
        return [container for id_ in own if (container := await ENGINE.find(id_)) is not None]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[tuple[KubeadmCluster, ContainerMachines]]:
    """A Cluster that does not exist yet, with the requirements of its machines."""
    request = UpRequest(providers=("kubeadm",), durable=False)
    home = Home(tmp_path / "home")
    async with (
        container_environment(home, IMAGE, request) as (environment, machines),
        Client(Config.from_kubeconfig(environment.kubeconfig)) as client,
    ):
        await client.create(Namespace.of(NAMESPACE))
        for addon in node_addons(NAMESPACE, machines.manifests):
            await client.apply(addon)
        yield KubeadmCluster(client, NAMESPACE, NAME), machines


async def test_control_plane_of_kubeadm_runs_on_containers(
    cluster: tuple[KubeadmCluster, ContainerMachines], tmp_path: Path, record_property: Record
) -> None:
    its, machines = cluster
    record_property("load before", os.getloadavg()[0])
    endpoint = machines.gateway, free_port(machines.gateway)
    async with relay(endpoint, its.members):
        began = monotonic()
        for manifest in manifests(*endpoint):
            await its.client.apply(manifest)
        nodes = await until(its.ready_nodes, lambda nodes: len(nodes) == 2, within=400)
        record_property("seconds: Cluster to 2 Ready nodes", round(monotonic() - began, 1))
        async with its.workload() as workload:
            helper = helper_image(machines)
            # A pod of the worker outlives the first member of the control plane.
            for index, node in enumerate(reversed(nodes)):
                await workload.apply(web(f"web-{index}", helper, node))
            await workload.apply(web_service())
            await until(lambda: all_run(workload, len(nodes)), within=240)
            await use(its, workload, len(nodes), tmp_path)
        record_property("seconds: Cluster to used pods", round(monotonic() - began, 1))

        for members in (MEMBERS, 1):
            began = monotonic()
            await its.scale(members)
            await until(its.replicas, lambda ready, members=members: ready == members, within=400)
            # The Node of a Machine goes with it.
            await until(
                its.ready_nodes,
                lambda nodes, members=members: len(nodes) == members + 1,
                within=120,
            )
            assert len(await its.members()) == members
            record_property(f"seconds: to {members} members", round(monotonic() - began, 1))
        async with its.workload() as workload:
            await use(its, workload, 1, tmp_path)
        await its.delete_cluster()
    assert await its.containers() == []


def manifests(host: str, port: int) -> list[Unstructured]:
    """A Cluster with a KubeadmControlPlane and one worker, all on containers."""
    infrastructure = CapelinMachineTemplate.resource
    config, template, workers = machine_deployment("workers", NAMESPACE, NAME, IMAGE_VERSION, 1)
    registration = config["spec"]["template"]["spec"]["joinConfiguration"]["nodeRegistration"]
    machine = workers["spec"]["template"]["spec"]
    of_control_plane = {
        "version": IMAGE_VERSION,
        "replicas": 1,
        "machineTemplate": {
            "spec": {
                "infrastructureRef": reference(
                    "infrastructure", infrastructure.kind, CONTROL_PLANE
                ),
                "deletion": machine["deletion"],
            }
        },
        "kubeadmConfigSpec": {
            "initConfiguration": {"nodeRegistration": registration},
            "joinConfiguration": {"nodeRegistration": registration},
            "preKubeadmCommands": [KUBE_PROXY],
        },
    }
    of_cluster = {
        "clusterNetwork": {"pods": {"cidrBlocks": [POD_NETWORK]}},
        "infrastructureRef": reference("infrastructure", CapelinCluster.resource.kind, NAME),
        "controlPlaneRef": reference("controlplane", KCP.kind, CONTROL_PLANE),
    }
    of_infrastructure = {"controlPlaneEndpoint": {"host": host, "port": port}}
    labels = {MACHINES_LABEL: "containers"}
    return [
        manifest(CapelinCluster.resource, NAME, of_infrastructure),
        {**template, "metadata": {"name": CONTROL_PLANE, "namespace": NAMESPACE}},
        manifest(KCP, CONTROL_PLANE, of_control_plane),
        manifest(Cluster.resource, NAME, of_cluster, labels),
        config,
        template,
        workers,
    ]


def manifest(
    resource: Resource, name: str, spec: Unstructured, labels: Mapping[str, str] = {}
) -> Unstructured:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": dict(labels)}
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**kind, "metadata": metadata, "spec": spec}
