"""CAPD, Cluster API's infrastructure provider of containers, with control planes of Capelin.

Its load balancer is the endpoint of the Cluster. CAPD configures it only for control planes that
are machines, so the test forwards connections to the Service of the API servers.
"""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace, Service
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_control_plane.desired.endpoints import ENDPOINT_CONFLICT

from tests.integration.homes import Home
from tests.integration.pools import reference

from . import kind_cluster
from .conftest import VERSIONS, load_programs
from .container_machines import machine_deployment
from .hosted import Hosted
from .kind_cluster import IMAGE, KindCluster
from .machines import (
    POD_CIDR,
    addons,
    are_ready,
    docker,
    prepare_for_machines,
    run_pods,
    use,
)
from .test_real_nodes import unhealthy

VERSION = VERSIONS[-1]
NODES = 2
BALANCER = {"imageRepository": "localhost", "imageTag": "e2e"}
"""The image `localhost/haproxy:e2e`: CAPD chooses the name."""
INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io/v1beta2"
Record = Callable[[str, object], None]

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
async def hosted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Hosted]:
    """A namespace of an environment with its own kind cluster, CAPD and control planes on pods."""
    name, home = f"e2e-{uuid4().hex[:6]}", Home(tmp_path)
    monkeypatch.setenv("CAPELIN_BACKENDS", "pods")
    options = ("--target", "kind", "--node-image", IMAGE, "--management-only")
    more = ("--with", "dev,kubeadm-bootstrap")
    cluster = KindCluster(f"capelin-{name}", home.environment(name).kubeconfig)
    try:
        up = await home.capelin("up", *options, *more, "-e", name)
        assert up.code == 0, up.err
        await load_programs(cluster, tmp_path)
        config = Config.from_kubeconfig(cluster.kubeconfig)
        async with Client(config, manager="e2e") as client:
            await client.create(Namespace.of(name))
            hosted = Hosted(client, name, "capd", kind=cluster)
            yield hosted
            await hosted.delete_cluster()
    finally:
        await home.capelin("down", "--yes", "-e", name)
        kind_cluster.delete(cluster.name)


async def test_workers_of_capd_join_through_its_load_balancer(
    hosted: Hosted, tmp_path: Path, record_property: Record
) -> None:
    await make_balancer_image(tmp_path)
    began = monotonic()
    for manifest in cluster_manifests(hosted):
        await hosted.client.apply(manifest)
    host = await until(lambda: endpoint_host(hosted), within=120)
    await forward(hosted)
    await until(hosted.is_initialized, within=240)
    await hosted.settles()
    endpoint = (await hosted.get()).spec.control_plane_endpoint
    assert endpoint is not None
    assert (endpoint.host, endpoint.port) == (host, 6443)
    assert f"https://{host}:6443".encode() in await hosted.kubeconfig()
    assert (await hosted.conditions())[ENDPOINT_CONFLICT] == "False"
    async with hosted.workload() as workload:
        await prepare_for_machines(hosted, workload)
        for manifest in worker_manifests(hosted):
            await hosted.client.apply(manifest)
        await until(lambda: are_ready(workload, NODES), within=300)
        record_property("seconds: Cluster to Ready nodes of CAPD", round(monotonic() - began, 1))
        await remind(hosted)
        await until(lambda: unhealthy(hosted), lambda problems: not problems, within=60)
        names = (await docker("ps", "--format={{.Names}}", f"--filter=name={hosted.name}")).split()
        workers = sorted(name for name in names if "workers" in name)
        assert len(workers) == NODES
        await run_pods(hosted, workload, workers)
        await use(hosted, workload, NODES, tmp_path)


async def remind(hosted: Hosted) -> None:
    """Have CAPD look for the Nodes now: its pause doubles with each attempt, up to minutes."""
    group, _, version = INFRASTRUCTURE.partition("/")
    resource = Resource(group, version, "DevMachine", "devmachines")
    for machine in (await hosted.client.list(resource, hosted.namespace)).items:
        name, annotations = machine["metadata"]["name"], {"example.com/reminded": ""}
        patch = {"metadata": {"annotations": annotations}}
        await hosted.client.patch(resource, name, hosted.namespace, patch)


async def make_balancer_image(folder: Path) -> None:
    """A node image with a program `haproxy` that does nothing: rules of iptables forward."""
    program = folder / "haproxy"
    program.write_text("#!/bin/sh\nexec sleep infinity\n")
    program.chmod(0o755)
    container = (await docker("create", IMAGE)).strip()
    await docker("cp", str(program), f"{container}:/usr/local/bin/haproxy")
    await docker("commit", "--change=ENTRYPOINT []", container, "localhost/haproxy:e2e")
    await docker("rm", container)


async def endpoint_host(hosted: Hosted) -> str | None:
    cluster = await hosted.client.get(Cluster, hosted.name, hosted.namespace)
    return cluster.spec.control_plane_endpoint.host or None


async def forward(hosted: Hosted) -> None:
    """Forward the port of the load balancer to the node port of the API servers."""

    async def node_port() -> int | None:
        name = f"{hosted.name}-kube-apiserver"
        service = await hosted.client.find(Service.resource, name, hosted.namespace)
        return None if service is None else service["spec"]["ports"][0].get("nodePort")

    port = await until(node_port, within=60)
    node = (
        await docker(
            "inspect", "--format={{.NetworkSettings.Networks.kind.IPAddress}}", hosted.kind.node
        )
    ).strip()
    run = ("exec", "--privileged", f"{hosted.name}-lb", "iptables", "--table", "nat", "--append")
    to = ("--to-destination", f"{node}:{port}")
    await docker(*run, "PREROUTING", "-p", "tcp", "--dport", "6443", "--jump", "DNAT", *to)
    await docker(*run, "POSTROUTING", "--jump", "MASQUERADE")


def cluster_manifests(hosted: Hosted) -> list[Unstructured]:
    """A Cluster with the infrastructure of CAPD and a control plane of Capelin."""
    metadata = {"name": hosted.name, "namespace": hosted.namespace}
    return [
        {
            "apiVersion": INFRASTRUCTURE,
            "kind": "DevCluster",
            "metadata": metadata,
            "spec": {"backend": {"docker": {"loadBalancer": BALANCER}}},
        },
        {
            "apiVersion": "controlplane.cluster.x-k8s.io/v1alpha1",
            "kind": "CapelinControlPlane",
            "metadata": metadata,
            "spec": {
                "version": VERSION,
                "backend": "Pods",
                "pods": {"exposure": {"type": "NodePort"}},
                "addons": addons(hosted.kind),
            },
        },
        {
            "apiVersion": Cluster.resource.api_version,
            "kind": "Cluster",
            "metadata": metadata,
            "spec": {
                "clusterNetwork": {"pods": {"cidrBlocks": [POD_CIDR]}},
                "controlPlaneRef": reference("controlplane", "CapelinControlPlane", hosted.name),
                "infrastructureRef": reference("infrastructure", "DevCluster", hosted.name),
            },
        },
    ]


def worker_manifests(hosted: Hosted) -> list[Unstructured]:
    """A MachineDeployment whose machines are containers of CAPD."""
    name = f"{hosted.name}-workers"
    config, _, deployment = machine_deployment(name, hosted.namespace, hosted.name, VERSION, NODES)
    # CAPD does not replace variables of cloud-init, and ignores errors of kubeadm by itself.
    join = config["spec"]["template"]["spec"]["joinConfiguration"]["nodeRegistration"]
    del join["name"], join["ignorePreflightErrors"]
    machine = deployment["spec"]["template"]["spec"]
    machine["infrastructureRef"] = reference("infrastructure", "DevMachineTemplate", name)
    template = {
        "apiVersion": INFRASTRUCTURE,
        "kind": "DevMachineTemplate",
        "metadata": {"name": name, "namespace": hosted.namespace},
        "spec": {"template": {"spec": {"backend": {"docker": {"customImage": IMAGE}}}}},
    }
    return [config, template, deployment]
