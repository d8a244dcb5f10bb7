"""The demo workload cluster: the ClusterClass of our own providers, and one Cluster of it."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass
from capelin.client import Client
from capelin.embedded.management import render_template

from capelin_infra.clusters import DEMO_CLASS, ClusterOptions, new_cluster
from capelin_infra.lifecycle import until_ready
from capelin_infra.progress import Checklist

NAME: Final = "demo"
_NAMESPACE: Final = "default"
_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of `capelin up` for the demo cluster."""

    workers: int = 3
    control_plane_replicas: int = 1


def demo_manifests() -> list[Unstructured]:
    """The ClusterClass of our own providers, and its templates."""
    file = files("capelin_infra") / "manifests" / f"clusterclass-{DEMO_CLASS}.yaml"
    return render_template(file.read_text(encoding="utf-8"), {})


async def bring_up_demo(
    checklist: Checklist, client: Client, version: str, options: DemoOptions
) -> None:
    """Create the demo cluster, or leave it as it is where there is one; wait until it is ready."""
    for manifest in demo_manifests():
        manifest["metadata"].setdefault("namespace", _NAMESPACE)
        await client.apply(manifest)
    if await client.find(Cluster, NAME, _NAMESPACE) is None:
        cluster = ClusterOptions(
            name=NAME,
            namespace=_NAMESPACE,
            cluster_class=DEMO_CLASS,
            version=version,
            control_plane_replicas=options.control_plane_replicas,
            workers=options.workers,
        )
        cluster_class = await client.get(ClusterClass, DEMO_CLASS, _NAMESPACE)
        await client.create(new_cluster(cluster, version, cluster_class))
    with checklist.step(f"cluster {NAME}") as line:
        await until_ready(
            client, NAME, _NAMESPACE, _SECONDS, lambda what: checklist.update(line, what)
        )
        line.detail = f"Kubernetes {version}"
