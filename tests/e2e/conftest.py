"""What the tests on a real cluster share: a kind cluster with Cluster API's kinds, and ours."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest
from capelin.client import Client, Config
from capelin.embedded.binaries import KNOWN_KUBERNETES, Binaries
from capelin.testing.cluster_api import cluster_api_crds, kinds_in
from capelin_control_plane.provider import provider

from .kind_cluster import KindCluster, kind_cluster, missing

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
VERSIONS = (KNOWN_KUBERNETES[0], KNOWN_KUBERNETES[-1])
"""An older version, and a newer one to upgrade to."""
ETCD_IMAGE = "registry.k8s.io/etcd:3.6.5-0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    if here and (why := missing()):
        for item in here:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def kind(tmp_path_factory: pytest.TempPathFactory) -> Generator[KindCluster]:
    """A kind cluster with the images of both versions and the kinds of the provider."""
    folder = tmp_path_factory.mktemp("kind")
    with kind_cluster(f"capelin-e2e-{folder.parent.name[-8:]}".lower(), folder) as cluster:
        asyncio.run(_prepared(cluster, folder))
        yield cluster


async def _prepared(cluster: KindCluster, folder: Path) -> None:
    programs = {
        f"registry.k8s.io/{program}:{version}": f"{program}@{version}"
        for version in VERSIONS
        for program in PROGRAMS
    }
    programs[ETCD_IMAGE] = "etcd"
    for image, program in programs.items():
        if not cluster.has_image(image):
            cluster.load_program(image, await Binaries().path(program), folder)
    async with Client(Config.from_kubeconfig(cluster.kubeconfig), manager="e2e") as client:
        ours = provider()
        for manifest in (*await cluster_api_crds(*kinds_in(ours.rules)), *ours.crds):
            await client.apply(manifest)
