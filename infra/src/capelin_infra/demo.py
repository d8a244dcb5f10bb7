"""The demo workload cluster: the ClusterClass of our own providers, and one Cluster of it."""

from importlib.resources import files
from typing import Final

from capelin.api import Unstructured
from capelin.api.views.capi import Cluster, ClusterClass
from capelin.client import Client
from capelin.embedded.management.components import parse

from capelin_infra.clusters import DEMO_CLASS, Shape, new_cluster
from capelin_infra.lifecycle import until_ready
from capelin_infra.progress import Checklist

NAME: Final = "demo"
_NAMESPACE: Final = "default"
_SECONDS: Final = 600.0


def demo_manifests() -> list[Unstructured]:
    """The ClusterClass and its templates; nothing as long as the providers bring none."""
    file = files("capelin_infra") / "manifests" / f"clusterclass-{DEMO_CLASS}.yaml"
    return parse(file.read_text(encoding="utf-8"), {}) if file.is_file() else []


async def bring_up_demo(
    checklist: Checklist, client: Client, version: str, replicas: int, workers: int
) -> None:
    """Make the demo cluster, or leave it as it is where there is one; wait until it is ready."""
    manifests = demo_manifests()
    if not manifests:
        line = checklist.begin(f"cluster {NAME}")
        checklist.end(line, detail=f"left out: no ClusterClass {DEMO_CLASS} is installed")
        return
    for manifest in manifests:
        manifest["metadata"].setdefault("namespace", _NAMESPACE)
        await client.apply(manifest)
    if await client.find(Cluster, NAME, _NAMESPACE) is None:
        shape = Shape(NAME, _NAMESPACE, DEMO_CLASS, version, replicas, workers)
        cluster_class = await client.get(ClusterClass, DEMO_CLASS, _NAMESPACE)
        await client.create(new_cluster(shape, version, cluster_class))
    with checklist.step(f"cluster {NAME}") as line:
        await until_ready(
            client, NAME, _NAMESPACE, _SECONDS, lambda what: checklist.tell(line, what)
        )
        line.detail = f"Kubernetes {version}"
