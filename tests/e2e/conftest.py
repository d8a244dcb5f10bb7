"""Fixtures of the tests on a real cluster: kind with the CRDs of Cluster API and Capelin."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from capelin.api.core import Namespace
from capelin.client import Client, Config
from capelin.testing.managers import running
from capelin_control_plane.backends.pods import PodsBackend
from capelin_control_plane.provider import provider
from capelin_control_plane.reconciler import CapelinControlPlaneReconciler
from capelin_embedded.binaries import TESTED_KUBERNETES, Binaries
from capelin_embedded.testing.administrator import cluster_api_crds, kinds_in

from tests.s3.versitygw import S3Server, s3_server

from .hosted import Hosted
from .kind_cluster import KindCluster, kind_cluster, missing

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
VERSIONS = (TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1])
"""An older version, and a newer one to upgrade to."""
_WITHOUT_CLUSTER = ("test_helpers.py",)
ETCD_IMAGE = "registry.k8s.io/etcd:3.6.8-0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    if here and (why := missing()):
        for item in here:
            if "[Processes]" not in item.nodeid and item.path.name not in _WITHOUT_CLUSTER:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def kind(tmp_path_factory: pytest.TempPathFactory) -> Generator[KindCluster]:
    """A kind cluster with the images of both versions and the kinds of the provider."""
    folder = tmp_path_factory.mktemp("kind")
    with kind_cluster(f"capelin-e2e-{folder.parent.name[-8:]}".lower(), folder) as cluster:
        asyncio.run(prepared(cluster, folder))
        yield cluster


async def prepared(cluster: KindCluster, folder: Path) -> None:
    """Load the images of both versions to a cluster, and install the kinds of the provider."""
    await load_programs(cluster, folder)
    async with Client(Config.from_kubeconfig(cluster.kubeconfig), manager="e2e") as client:
        ours = provider()
        for manifest in (*await cluster_api_crds(*kinds_in(ours.rules)), *ours.crds):
            await client.apply(manifest)


async def load_programs(cluster: KindCluster, folder: Path) -> None:
    """Load the images of control planes in both versions to a cluster."""
    programs = {
        f"registry.k8s.io/{program}:{version}": f"{program}@{version}"
        for version in VERSIONS
        for program in PROGRAMS
    }
    programs[ETCD_IMAGE] = "etcd"
    for image, program in programs.items():
        if not cluster.has_image(image):
            cluster.load_program(image, await Binaries().path(program), folder)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[S3Server]:
    """A real S3 server for backups."""
    async with s3_server(tmp_path / "s3") as server:
        yield server


@pytest.fixture
async def unmanaged(kind: KindCluster) -> AsyncGenerator[Hosted]:
    """A future control plane in its own namespace, without a provider."""
    async with namespace_in(kind) as hosted:
        yield hosted


@pytest.fixture
async def hosted(unmanaged: Hosted) -> AsyncGenerator[Hosted]:
    """A future control plane and its provider."""
    async with provider_for(unmanaged):
        yield unmanaged
        await unmanaged.delete_all()


@asynccontextmanager
async def namespace_in(kind: KindCluster) -> AsyncGenerator[Hosted]:
    """A namespace for a future control plane."""
    namespace = f"e2e-{uuid4().hex[:8]}"
    async with Client(Config.from_kubeconfig(kind.kubeconfig), manager="e2e") as client:
        await client.create(Namespace.of(namespace))
        yield Hosted(client, namespace, "one", kind=kind)
        await client.delete(Namespace, namespace)


@asynccontextmanager
async def provider_for(hosted: Hosted) -> AsyncGenerator[None]:
    """The provider, in this process and for one namespace."""
    config = Config.from_kubeconfig(hosted.kind.kubeconfig)
    reconciler = CapelinControlPlaneReconciler({"Pods": PodsBackend(Client(config))})
    async with running(reconciler, config=config, namespace=hosted.namespace):
        yield
