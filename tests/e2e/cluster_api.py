"""Cluster API's core and kubeadm bootstrap provider in pods of a kind cluster, by clusterctl."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from capelin_embedded.binaries import Binaries
from capelin_release.charts import dump_yaml

from tests.integration.repositories import CLUSTER_API, Repository

from . import cert_manager
from .kind_cluster import KindCluster
from .program_images import manager_image

_VERSIONS: Final = dict.fromkeys(("cluster-api", "bootstrap-kubeadm"), CLUSTER_API)
WAITING: Final = ("--wait-providers", "--wait-provider-timeout=600")
INIT: Final = ("init", "--core=cluster-api", "--bootstrap=kubeadm", "--control-plane=-", *WAITING)
_MANAGERS: Final = {
    "cluster-api-controller": "localhost/cluster-api-controller:e2e",
    "kubeadm-bootstrap-controller": "localhost/kubeadm-bootstrap-controller:e2e",
}


async def load_managers(cluster: KindCluster, folder: Path) -> None:
    """Load the images of Cluster API's managers and of cert-manager."""
    programs = {
        **{reference: await Binaries().path(name) for name, reference in _MANAGERS.items()},
        cert_manager.IMAGE: await cert_manager.program(),
    }
    for reference, program in programs.items():
        archive = manager_image(program, reference, folder / "manager.tar")
        await asyncio.to_thread(cluster.load_archive, archive)


async def add_cluster_api(repository: Repository, others: Mapping[str, str]) -> None:
    """Add Cluster API with these images to a repository, by label and version."""
    await repository.add_cluster_api()
    repository.write_config({**_VERSIONS, **others})
    repositories = repository.folder / "dist" / "clusterctl"
    file = await asyncio.to_thread(cert_manager.use_own_image, repositories)
    local = {"repository": "localhost", "tag": "e2e"}
    more = {
        "images": dict.fromkeys(_VERSIONS, local),
        "cert-manager": {"url": str(file), "version": cert_manager.VERSION, "timeout": "15m"},
    }
    repository.config.write_text(repository.config.read_text() + dump_yaml(more))
