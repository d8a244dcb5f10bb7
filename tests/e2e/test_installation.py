"""Our charts, and our component files, on a cluster with nodes: pods under restricted security."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import uuid4

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace
from capelin.client import Client, Config
from capelin.embedded.binaries import Binaries
from capelin.testing.waiting import until
from capelin.yaml import read_all_yaml
from capelin_infra.release.charts import dump_yaml
from capelin_infra.release.components import helm
from capelin_infra.release.our_charts import our_charts
from capelin_infra.waiting import wait_until_ready

from tests.integration.repositories import CLUSTER_API, Repository

from . import cert_manager
from .kind_cluster import KindCluster, kind_cluster
from .manager_image import manager_image

pytestmark = [pytest.mark.timeout(3600), pytest.mark.needs_programs("clusterctl", "helm")]

IMAGES = "CAPELIN_E2E_IMAGES"
"""The variable with the folder `images` of a release, of this commit or one close to it."""
VERSION = "0.1.0"
KUBERNETES = os.environ.get("CAPELIN_E2E_KUBERNETES", "v1.34.4")
"""A version whose images the nodes have or can pull."""
PROVIDERS = ("capelin-control-plane", "capelin-machine-pool")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
MANAGERS = {
    "cluster-api-controller": "localhost/cluster-api-controller:e2e",
    "kubeadm-bootstrap-controller": "localhost/kubeadm-bootstrap-controller:e2e",
}


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[KindCluster]:
    """A cluster with the images of all managers, and nothing of Cluster API."""
    if absent := [name for name in (IMAGES, cert_manager.PROGRAM) if name not in os.environ]:
        pytest.skip(f"the environment has no {' and no '.join(absent)}")
    folder = tmp_path_factory.mktemp("kind")
    programs = {
        **{reference: await Binaries().path(name) for name, reference in MANAGERS.items()},
        cert_manager.IMAGE: Path(os.environ[cert_manager.PROGRAM]),
    }
    with kind_cluster(f"charts-{uuid4().hex[:6]}", folder) as made:
        archives = [
            *(archive_of(name) for name in PROVIDERS),
            *(
                manager_image(program, reference, folder / f"{number}.tar")
                for number, (reference, program) in enumerate(programs.items())
            ),
        ]
        for archive in archives:
            await asyncio.to_thread(made.load_archive, archive)
        yield made


def archive_of(name: str) -> Path:
    (archive,) = Path(os.environ[IMAGES]).glob(f"{name}-v*-linux-amd64.tar")
    return archive


def tag_of(name: str) -> str:
    """As in `v0.1.0`, from the archive's name."""
    return archive_of(name).name.removeprefix(f"{name}-").removesuffix("-linux-amd64.tar")


@pytest.fixture(scope="module")
async def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """clusterctl's, with cert-manager, and the images that were loaded."""
    repository = Repository(tmp_path_factory.mktemp("repository"))
    repository.variables["CAPELIN_BACKEND"] = "Pods"
    await repository.add_capelin(VERSION)
    await repository.add_cluster_api()
    labels = ("control-plane-capelin", "infrastructure-capelin")
    repository.write_config(
        {
            "cluster-api": CLUSTER_API,
            "bootstrap-kubeadm": CLUSTER_API,
            **dict.fromkeys(labels, f"v{VERSION}"),
        }
    )
    file = await cert_manager.manifests(repository.folder / "cert-manager.yaml")
    images = {
        "cluster-api": {"repository": "localhost", "tag": "e2e"},
        "bootstrap-kubeadm": {"repository": "localhost", "tag": "e2e"},
        **{
            label: {"repository": "ghcr.io/capelin", "tag": tag_of(name)}
            for label, name in zip(labels, PROVIDERS, strict=True)
        },
    }
    more = {
        "images": images,
        "cert-manager": {"url": str(file), "version": cert_manager.VERSION, "timeout": "15m"},
    }
    repository.config.write_text(repository.config.read_text() + dump_yaml(more))
    return repository


async def deployment(client: Client, namespace: str, name: str) -> Unstructured:
    return await client.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")


async def is_available(client: Client, name: str) -> bool:
    cluster = await client.get(Cluster, name, name)
    return any(
        (condition.type, condition.status) == ("Available", "True")
        for condition in cluster.status.conditions
    )


async def test_charts_then_clusterctl(
    cluster: KindCluster, repository: Repository, tmp_path: Path
) -> None:
    waiting = ("--wait-providers", "--wait-provider-timeout=1200")
    await repository.clusterctl(
        *("init", "--core=cluster-api", "--bootstrap=kubeadm", "--control-plane=-", *waiting),
        kubeconfig=cluster.kubeconfig,
    )
    async with Client(Config.from_kubeconfig(cluster.kubeconfig)) as client:
        metadata = {"name": "capelin-system", "labels": RESTRICTED}
        await client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        folder = our_charts(VERSION)["capelin"].write(tmp_path)
        tags = [f"--set={name}.image.tag={tag_of(name)}" for name in PROVIDERS]
        flags = ("--namespace=capelin-system", f"--kubeconfig={cluster.kubeconfig}")
        await helm(
            Binaries(), "install", "capelin", str(folder), *flags, *tags, "--wait", "--timeout=20m"
        )
        for name in PROVIDERS:
            found = await deployment(client, "capelin-system", name)
            assert found["status"]["readyReplicas"] == 1

        await client.apply(Namespace.of("demo"))
        text = await repository.clusterctl(
            *("generate", "cluster", "demo", "--infrastructure=capelin", "--target-namespace=demo"),
            f"--kubernetes-version={KUBERNETES}",
            *("--control-plane-machine-count=1", "--worker-machine-count=2"),
            kubeconfig=cluster.kubeconfig,
        )
        manifests = [obj for obj in read_all_yaml(text) if obj]
        for manifest in sorted(manifests, key=lambda obj: obj["kind"] == "Cluster"):
            await client.apply(manifest)
        progress: list[str] = []
        await wait_until_ready(client, "demo", "demo", 1200, progress.append)

        # The cluster stays while its providers go and come back another way.
        await helm(Binaries(), "uninstall", "capelin", *flags, "--wait")
        assert await is_available(client, "demo")
        await repository.clusterctl(
            *("init", "--control-plane=capelin", "--infrastructure=capelin", *waiting),
            kubeconfig=cluster.kubeconfig,
        )
        for label in ("control-plane-capelin", "infrastructure-capelin"):
            found = await deployment(client, f"{label}-system", label)
            assert found["status"]["readyReplicas"] == 1
        await wait_until_ready(client, "demo", "demo", 600, progress.append)
        await client.delete(Cluster, "demo", "demo")

        async def gone() -> bool:
            return await client.find(Cluster, "demo", "demo") is None

        await until(gone, within=600)
