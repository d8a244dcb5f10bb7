"""Real kubelets join a control plane on pods, run pods, and outlive its upgrade.

They join by plain `kubeadm join`, and by bootstrap data that Cluster API's kubeadm bootstrap
provider made.
"""

import base64
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from capelin.api.capi import Machine, MachineDeployment
from capelin.api.core import ConfigMap, Node, Secret
from capelin.client import Client, Config
from capelin.contract import find_condition
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin_control_plane.operations.rotation import DROP_ANNOTATION, ROTATE_ANNOTATION, ROTATING
from capelin_control_plane.provider import provider
from capelin_machine_pool.provider import provider as infrastructure_provider
from capelin_release.tools import HELM

from tests.integration.repositories import Repository

from .cluster_api import INIT, add_cluster_api, load_managers
from .conftest import VERSIONS, load_programs, namespace_in, provider_for
from .container_machines import (
    machine_deployment,
    machine_reconciler,
    machines_for,
    remove_machines,
)
from .hosted import Hosted, under_load
from .kind_cluster import KindCluster, kind_cluster
from .machines import (
    KUBECTL,
    POD_CIDR,
    addons,
    are_ready,
    containers,
    docker,
    join,
    kubectl,
    machines,
    prepare_for_machines,
    run_pods,
    use,
)

OLD, NEW = VERSIONS
REPLICAS = 2
"""Of API servers."""
NODES = 2
CA_FILE = "/etc/kubernetes/pki/ca.crt"
KUBELET_CONF = "/etc/kubernetes/kubelet.conf"
CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
MOST_FAILED = 0.01
"""The share of requests that may fail with status 500 while members of etcd restart."""
SIGNING = "4m"
"""The validity of kubelets' certificates. Kubelets renew them after 70 to 90 %."""
HEALTHY = ("Available", "NodeHealthy", "NodeReady", "Ready")
"""Conditions of a working Machine."""
Record = Callable[[str, object], None]

pytestmark = [pytest.mark.timeout(1200), pytest.mark.needs_programs(f"kubectl@{KUBECTL}")]


async def test_machines_that_join_run_pods_and_outlive_an_upgrade(
    hosted: Hosted, tmp_path: Path, record_property: Record
) -> None:
    await create(hosted)
    async with hosted.workload() as workload, machines(hosted.kind, NODES) as names:
        began = monotonic()
        await join(hosted, workload, names)
        record_property(
            f"seconds: {NODES} machines joined and Ready", round(monotonic() - began, 1)
        )
        containers_of = {name: name for name in names}
        await outlive_an_upgrade(hosted, workload, containers_of, tmp_path, record_property)


async def test_machines_outlive_a_rotation_of_the_cas(
    hosted: Hosted, tmp_path: Path, record_property: Record
) -> None:
    await create(hosted)
    async with hosted.workload() as workload, machines(hosted.kind, NODES) as names:
        await join(hosted, workload, names)
        await run_pods(hosted, workload, names)
        await use(hosted, workload, NODES, tmp_path)
        before = await containers(workload)
        async with under_load(hosted, tmp_path, names[0], most_closed=2 * REPLICAS) as clients:
            began = monotonic()
            await hosted.annotate(ROTATE_ANNOTATION, datetime.now(UTC).isoformat())
            await until(lambda: rotation(hosted), lambda text: "stage 3" in text, within=480)
            record_property("seconds: until clients are awaited", round(monotonic() - began, 1))
            await hosted.annotate(DROP_ANNOTATION, datetime.now(UTC).isoformat())
            # One kubelet gets a certificate with the commands of the page. The other one renews
            # its certificate by itself. Both trust only the old CA. On a slow machine, both have
            # certificates of the new CA already.
            record_property("stage 3 waits for kubelets", "Node" in await rotation(hosted))
            await docker(
                "exec", "--workdir=/root", names[0], "bash", "-euc", commands_of_the_page("CLIENT=")
            )
            await until(lambda: rotation(hosted), lambda text: names[0] not in text, within=120)
            waiting = "Waiting for tokens of pods, until"
            await until(lambda: rotation(hosted), lambda text: waiting in text, within=400)
            record_property("seconds: until kubelets are ready", round(monotonic() - began, 1))
        # Each stage restarts the members of etcd, the leader like any other: see docs/figures.md.
        failed = clients.failed()
        of_etcd = [failure for failure in failed if ": 500 " in failure]
        others = [failure for failure in failed if failure not in of_etcd]
        assert not others, "\n".join(others)
        requests = sum(count for name, count in clients.counts().items() if "requests" in name)
        record_property("answered 500 while etcd restarted", f"{len(of_etcd)} of {requests}")
        assert len(of_etcd) <= requests * MOST_FAILED, of_etcd
        assert await containers(workload) == before
        await use(hosted, workload, NODES, tmp_path)
        await hosted.annotate(DROP_ANNOTATION, f"force@{datetime.now(UTC).isoformat()}")
        await until(lambda: rotation(hosted), lambda text: not text, within=240)
        await hosted.settles()
        async with hosted.workload() as renewed:
            await until(lambda: are_ready(renewed, NODES), within=120)
            assert await containers(renewed) == before
            # The kubelets still have the old CA in their files, and work with it.
            await use(hosted, renewed, NODES, tmp_path)
            ca = await hosted.client.get(Secret, f"{hosted.name}-ca", hosted.namespace)
            old, new = await file_of(names[0], CA_FILE), ca.data["tls.crt"].decode()
            assert old.strip() != new.strip()

            async def published() -> str:
                found = await renewed.get(ConfigMap, "kube-root-ca.crt", "kube-system")
                return found.data["ca.crt"].strip()

            await until(published, lambda text: text == new.strip(), within=240)
            await docker(
                "exec", names[0], "bash", "-euc", commands_of_the_page("export KUBECONFIG")
            )
            assert (await file_of(names[0], CA_FILE)).strip() == new.strip()
            encoded = base64.b64encode(new.encode()).decode()
            assert encoded in await file_of(names[0], KUBELET_CONF)
            # The Node remains Ready while its kubelet restarts.
            await until(lambda: kubectl(hosted, tmp_path, "logs", "web-0"), has_served, within=120)
            await until(lambda: are_ready(renewed, NODES), within=120)
            await use(hosted, renewed, NODES, tmp_path)
            assert await containers(renewed) == before


def has_served(log: str) -> bool:
    return "serving" in log


def commands_of_the_page(first: str) -> str:
    """The block of commands on the page that begins with these words."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "rotate.md"
    match = re.search(rf"```sh\n({first}.*?)```", page.read_text(), re.DOTALL)
    assert match is not None
    return match[1]


async def file_of(machine: str, path: str) -> str:
    return await docker("exec", machine, "cat", path)


async def rotation(hosted: Hosted) -> str:
    """The message of a rotation. Empty without one."""
    status = (await hosted.get()).status
    found = find_condition(status.conditions, ROTATING) if status else None
    return found.message if found else ""


@pytest.fixture(scope="module")
async def with_cluster_api(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[KindCluster]:
    """A kind cluster with Cluster API's core, kubeadm bootstrap provider and Capelin's CRDs."""
    folder = tmp_path_factory.mktemp("kind")
    repository = Repository(folder / "repository")
    with kind_cluster(f"nodes-{uuid4().hex[:6]}", folder) as cluster:
        await load_programs(cluster, folder)
        await load_managers(cluster, folder)
        await add_cluster_api(repository, {})
        await repository.clusterctl(*INIT, kubeconfig=cluster.kubeconfig)
        config = Config.from_kubeconfig(cluster.kubeconfig)
        async with Client(config, manager="e2e") as client:
            ours, theirs = provider(), infrastructure_provider()
            for manifest in (*ours.crds, *ours.objects, *theirs.crds, *theirs.objects):
                await client.apply(manifest)
        yield cluster


@pytest.fixture
async def hosted_with_cluster_api(with_cluster_api: KindCluster) -> AsyncGenerator[Hosted]:
    """A future control plane with its provider and that of its machines."""
    config = Config.from_kubeconfig(with_cluster_api.kubeconfig)
    reconciler = machine_reconciler(with_cluster_api.name)
    try:
        async with (
            namespace_in(with_cluster_api) as hosted,
            provider_for(hosted),
            running(reconciler, config=config, namespace=hosted.namespace),
        ):
            yield hosted
            # Core deletes the workers first, like for any Cluster.
            await hosted.delete_cluster()
    finally:
        await remove_machines(with_cluster_api.name)


@pytest.mark.needs_programs("clusterctl", HELM)
async def test_machines_with_bootstrap_data_run_pods_and_outlive_an_upgrade(
    hosted_with_cluster_api: Hosted, tmp_path: Path, record_property: Record
) -> None:
    hosted, client = hosted_with_cluster_api, hosted_with_cluster_api.client
    deployment = f"shoal-{uuid4().hex[:6]}"
    await create(hosted)
    async with hosted.workload() as workload:
        await prepare_for_machines(hosted, workload)
        began = monotonic()
        for manifest in machine_deployment(deployment, hosted.namespace, hosted.name, OLD, NODES):
            await client.apply(manifest)
        await until(lambda: are_ready(workload, NODES), within=240)
        record_property(
            f"seconds: {NODES} Machines with bootstrap data to Ready nodes",
            round(monotonic() - began, 1),
        )
        await until(lambda: unhealthy(hosted), lambda problems: not problems, within=60)
        names = await machines_for(hosted.kind.name)
        assert {machine.name for machine in await machines_of(hosted)} == names.keys()
        await outlive_an_upgrade(hosted, workload, names, tmp_path, record_property)
        await until(lambda: unhealthy(hosted), lambda problems: not problems, within=60)
        assert await machines_for(hosted.kind.name) == names

        began = monotonic()
        await client.delete(MachineDeployment, deployment, hosted.namespace)
        await until(lambda: left(hosted, workload), lambda names: not names, within=240)
        record_property(
            f"seconds: {NODES} Machines deleted, and their nodes and containers",
            round(monotonic() - began, 1),
        )


async def create(hosted: Hosted) -> None:
    """Create the control plane, and wait until it has settled."""
    # The only available kubelets have the newer version.
    await hosted.create(
        OLD,
        replicas=REPLICAS,
        etcd={"replicas": 3},
        network={"pods": {"cidrBlocks": [POD_CIDR]}},
        addons=addons(hosted.kind),
        controllerManager={"extraArgs": {"cluster-signing-duration": SIGNING}},
    )
    await hosted.settles()


async def outlive_an_upgrade(
    hosted: Hosted, workload: Client, joined: Mapping[str, str], folder: Path, record: Record
) -> None:
    """Run pods on joined machines, and use them before and after an upgrade.

    `joined` has the containers of the machines by their names.
    """
    names = [*joined.values()]
    certificates = await certificates_of(names)
    await run_pods(hosted, workload, [*joined])
    await use(hosted, workload, NODES, folder)
    before = await containers(workload)
    # When each API server stops: see the planned changes in docs/figures.md.
    async with under_load(hosted, folder, names[0], most_closed=REPLICAS) as clients:
        await hosted.change(version=NEW)
        await hosted.settles()
        assert clients.failed() == []
    assert clients.failed() == []
    for name, count in clients.counts().items():
        record(name, count)
    await until(lambda: certificates_of(names), certificates.isdisjoint, within=300)
    await until(lambda: are_ready(workload, NODES), within=60)
    assert await containers(workload) == before
    await use(hosted, workload, NODES, folder)


async def certificates_of(names: Sequence[str]) -> set[str]:
    """The client certificates of kubelets."""
    return {await docker("exec", name, "cat", CERTIFICATE) for name in names}


async def machines_of(hosted: Hosted) -> list[Machine]:
    return (await hosted.client.list(Machine, hosted.namespace)).items


async def unhealthy(hosted: Hosted) -> list[str]:
    """Conditions of Machines that differ from those of a working one."""
    problems: list[str] = []
    for machine in await machines_of(hosted):
        status = machine.status
        node = status.node_ref.name if status.node_ref else None
        if (status.phase, node) != ("Running", machine.name):
            problems.append(f"{machine.name}: {status.phase}, node {node}")
        states = {condition.type: condition for condition in status.conditions}
        problems += [
            f"{machine.name}: {name}: {states.get(name)}"
            for name in HEALTHY
            if name not in states or states[name].status != "True"
        ]
    return problems


async def left(hosted: Hosted, workload: Client) -> list[str]:
    """Existing machines, nodes and containers."""
    nodes = (await workload.list(Node)).items
    objects = [obj.name for obj in (*await machines_of(hosted), *nodes)]
    return [*objects, *await machines_for(hosted.kind.name)]
