"""Capelin's charts and component files on a cluster with nodes: pods under restricted security.

Both are installed in an older version and upgraded, while clients use a cluster all the time.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace, Pod
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin.yaml import read_all_yaml
from capelin_cli.status.readiness import wait_until_ready
from capelin_embedded.binaries import TESTED_KUBERNETES, Binaries
from capelin_release.components import helm
from capelin_release.our_charts import our_charts
from capelin_release.tools import HELM

from tests.integration.repositories import REGISTRY, Repository, older_charts

from .cluster_api import INIT, WAITING, add_cluster_api, load_managers
from .hosted import Hosted, under_load
from .kind_cluster import KindCluster, kind_cluster
from .release_images import archive_of, image_of

pytestmark = [pytest.mark.timeout(3600), pytest.mark.needs_programs("clusterctl", HELM)]

OLDER, VERSION = "0.1.0-alpha.1", "0.1.0"
KUBERNETES = os.environ.get("CAPELIN_E2E_KUBERNETES", TESTED_KUBERNETES[-1])
"""A version whose images the nodes have or can pull."""
CHARTS = ("capelin-control-plane", "capelin-machine-pool")
LABELS = ("control-plane-capelin", "infrastructure-capelin")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
NAME = "demo"
"""The workload cluster and its namespace."""


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[KindCluster]:
    """A cluster with the images of all managers, without Cluster API."""
    folder = tmp_path_factory.mktemp("kind")
    with kind_cluster(f"charts-{uuid4().hex[:6]}", folder) as made:
        await load_managers(made, folder)
        for name in CHARTS:
            await asyncio.to_thread(made.load_archive, archive_of(name))
            for version in (OLDER, VERSION):
                made.tag_image(image_of(name), f"{REGISTRY}/{name}:v{version}")
        yield made


@pytest.fixture(scope="module")
async def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """A clusterctl repository with two versions of Capelin and cert-manager."""
    repository = Repository(tmp_path_factory.mktemp("repository"))
    repository.variables.update({"CAPELIN_BACKEND": "Pods", "CAPELIN_EXPOSURE": "NodePort"})
    await repository.add_capelin(VERSION)
    await repository.add_older_capelin(OLDER)
    await add_cluster_api(repository, dict.fromkeys(LABELS, f"v{VERSION}"))
    return repository


class Steps:
    """Steps of the test with their durations."""

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self._record = record
        self._last = monotonic()

    def done(self, what: str) -> None:
        now = monotonic()
        self._record(f"seconds: {what}", round(now - self._last, 1))
        self._last = now


async def test_charts_then_clusterctl(
    repository: Repository,
    cluster: KindCluster,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    steps = Steps(record_property)

    async def clusterctl(*arguments: str) -> str:
        return await repository.clusterctl(*arguments, kubeconfig=cluster.kubeconfig)

    async def helm_in(*arguments: str) -> None:
        where = ("--namespace=capelin-system", f"--kubeconfig={cluster.kubeconfig}")
        await helm(Binaries(), *arguments, *where)

    async with Client(Config.from_kubeconfig(cluster.kubeconfig)) as client:
        await clusterctl(*INIT)
        steps.done("cert-manager and Cluster API by clusterctl init")

        # By Helm: the older version, a cluster, the newer version.
        metadata = {"name": "capelin-system", "labels": RESTRICTED}
        await client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        older = older_charts(OLDER)["capelin"].write(tmp_path / OLDER)
        await helm_in("install", "capelin", str(older), "--wait", "--timeout=10m")
        in_one = [("capelin-system", name) for name in CHARTS]
        await all_run(client, in_one, OLDER)
        assert not await has_columns(client)
        steps.done("charts installed")
        await create_cluster(client, await clusterctl(*generated()))
        await is_ready(client)
        steps.done("a cluster Available")

        async def upgrade() -> None:
            newer = our_charts(VERSION, REGISTRY)["capelin"].write(tmp_path / VERSION)
            await helm_in("upgrade", "capelin", str(newer), "--wait", "--timeout=10m")
            await all_run(client, in_one, VERSION)

        await while_clients_call(cluster, client, tmp_path, upgrade)
        assert await has_columns(client)
        steps.done("charts upgraded")
        await scale(client, 3)
        steps.done("scaled by the upgraded providers")

        # clusterctl replaces Helm for the same cluster.
        await helm_in("uninstall", "capelin", "--wait")
        assert await is_available(client)
        ours = [f"--control-plane=capelin:v{OLDER}", f"--infrastructure=capelin:v{OLDER}"]
        await clusterctl("init", *ours, *WAITING)
        apart = [(f"{label}-system", label) for label in LABELS]
        await all_run(client, apart, OLDER)
        await is_ready(client)
        steps.done("charts uninstalled, providers installed by clusterctl")

        async def upgrade_by_clusterctl() -> None:
            await clusterctl(
                *("upgrade", "apply", f"--control-plane=capelin:v{VERSION}"),
                *(f"--infrastructure=capelin:v{VERSION}", *WAITING),
            )
            await all_run(client, apart, VERSION)

        await while_clients_call(cluster, client, tmp_path, upgrade_by_clusterctl)
        assert await has_columns(client)
        steps.done("upgraded by clusterctl")
        await scale(client, 2)
        await client.delete(Cluster, NAME, NAME)
        await until(lambda: is_gone(client), within=300)
        steps.done("the cluster scaled and deleted")


async def while_clients_call(
    cluster: KindCluster, client: Client, folder: Path, act: Callable[[], Awaitable[None]]
) -> None:
    """Run an action while clients call the workload cluster, which must not change."""
    pods = await control_plane_pods(client)
    async with under_load(Hosted(client, NAME, NAME, kind=cluster), folder) as clients:
        await act()
        await is_ready(client)
        assert clients.failed() == []
    assert await control_plane_pods(client) == pods


async def control_plane_pods(client: Client) -> set[str]:
    labels = {"app.kubernetes.io/managed-by": "capelin-control-plane"}
    return {f"{pod.name} {pod.uid}" for pod in (await client.list(Pod, NAME, labels=labels)).items}


def generated() -> Iterable[str]:
    """The arguments that make the cluster's manifests."""
    return (
        *("generate", "cluster", NAME, f"--target-namespace={NAME}"),
        # The charts are not in its inventory, which would provide the version.
        f"--infrastructure=capelin:v{VERSION}",
        f"--kubernetes-version={KUBERNETES}",
        *("--control-plane-machine-count=1", "--worker-machine-count=2"),
    )


async def create_cluster(client: Client, text: str) -> None:
    await client.apply(Namespace.of(NAME))
    manifests = [obj for obj in read_all_yaml(text) if obj]
    for manifest in sorted(manifests, key=lambda obj: obj["kind"] == "Cluster"):
        await client.apply(manifest)


async def all_run(client: Client, deployments: Iterable[tuple[str, str]], version: str) -> None:
    """Every Deployment has pods of one version in a restricted namespace."""
    for namespace, name in deployments:
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
        deployment: Unstructured = await client.request("GET", path)
        status = deployment["status"]
        assert status["readyReplicas"] == status["updatedReplicas"] == status["replicas"] == 1
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"].endswith(f":v{version}")
        labels = (await client.get(Namespace, namespace)).metadata.labels
        assert RESTRICTED.items() <= labels.items()


async def has_columns(client: Client) -> bool:
    """Whether the CRD of pools has a field that the older version lacks."""
    name = "capelinmachinepools.infrastructure.cluster.x-k8s.io"
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    crd: Unstructured = await client.request("GET", path)
    return "additionalPrinterColumns" in crd["spec"]["versions"][0]


async def scale(client: Client, workers: int) -> None:
    pools = [{"class": "default-worker", "name": "workers", "replicas": workers}]
    topology = {"workers": {"machinePools": pools}}
    await client.patch(Cluster, NAME, NAME, {"spec": {"topology": topology}})
    await is_ready(client)


async def is_ready(client: Client) -> None:
    progress: list[str] = []
    await wait_until_ready(client, NAME, NAME, 400, progress.append)


async def is_available(client: Client) -> bool:
    cluster = await client.get(Cluster, NAME, NAME)
    return any(
        (condition.type, condition.status) == ("Available", "True")
        for condition in cluster.status.conditions
    )


async def is_gone(client: Client) -> bool:
    return await client.find(Cluster, NAME, NAME) is None
