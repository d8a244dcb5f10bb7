"""The demo workload cluster: the ClusterClass of our own providers, and one Cluster of it."""

from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final, cast

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass
from capelin.client import Client
from capelin.embedded.management import render_template

from capelin_infra.progress import Checklist
from capelin_infra.topology import DEMO_CLASS, ClusterOptions, new_cluster
from capelin_infra.waiting import wait_until_ready

NAME: Final = "demo"
_NAMESPACE: Final = "default"
_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of `capelin up` for the demo cluster. None is the default of a new one."""

    workers: int | None = None
    control_plane_replicas: int | None = None

    @property
    def cluster(self) -> ClusterOptions:
        """The options of a new demo cluster."""
        default = ClusterOptions()
        replicas, workers = self.control_plane_replicas, self.workers
        return replace(
            default,
            control_plane_replicas=default.control_plane_replicas if replicas is None else replicas,
            workers=default.workers if workers is None else workers,
        )


def demo_manifests() -> list[Unstructured]:
    """The ClusterClass of our own providers, and its templates."""
    file = files("capelin_infra") / "manifests" / f"clusterclass-{DEMO_CLASS}.yaml"
    return render_template(file.read_text(encoding="utf-8"), {})


def demo_class() -> ClusterClass:
    """The ClusterClass of our own providers, as it is when it is new."""
    manifests = demo_manifests()
    return ClusterClass.read(next(each for each in manifests if each["kind"] == "ClusterClass"))


async def apply_cluster_class(client: Client, namespace: str = _NAMESPACE) -> list[str]:
    """Create our ClusterClass and its templates, or bring them up to date.

    One that a user changed stays as it is. Returns what was left alone.
    """
    kept: list[str] = []
    for manifest in demo_manifests():
        manifest["metadata"].setdefault("namespace", namespace)
        resource = await client.resource_of(manifest)
        live = await client.find(resource, manifest["metadata"]["name"], namespace)
        if live is not None and changed_by_others(live):
            kept.append(f"{manifest['kind']} {manifest['metadata']['name']}")
        else:
            await client.apply(manifest)
    return kept


def changed_by_others(obj: Unstructured) -> bool:
    """Whether somebody but the command wrote in an object's spec."""
    entries = cast("list[dict[str, Any]]", obj["metadata"].get("managedFields", []))
    return any(
        "f:spec" in entry.get("fieldsV1", {})
        for entry in entries
        if not entry.get("manager", "").startswith("capelin-cli") and not entry.get("subresource")
    )


async def bring_up_demo(
    checklist: Checklist, client: Client, version: str, options: DemoOptions
) -> None:
    """Create the demo cluster, or leave it as it is where there is one; wait until it is ready."""
    for kept in await apply_cluster_class(client):
        checklist.say(f"{kept} was changed by somebody, and stays as it is.")
    cluster = await client.find(Cluster, NAME, _NAMESPACE)
    if cluster is None:
        cluster_class = await client.get(ClusterClass, DEMO_CLASS, _NAMESPACE)
        await client.create(new_cluster(NAME, _NAMESPACE, version, options.cluster, cluster_class))
    else:
        for difference in differences(cluster, options):
            checklist.say(difference)
    with checklist.step(f"cluster {NAME}") as line:
        await wait_until_ready(
            client, NAME, _NAMESPACE, _SECONDS, lambda reason: checklist.update(line, reason)
        )
        line.detail = f"Kubernetes {version}"


def differences(cluster: Cluster, options: DemoOptions) -> list[str]:
    """Which options are not what a demo cluster that is there has, and how to change it."""
    topology = cluster.spec.topology
    if topology is None:
        return []
    replicas = topology.control_plane.replicas
    workers = [*topology.workers.machine_pools, *topology.workers.machine_deployments]
    count = sum(each.replicas or 0 for each in workers)
    notes: list[str] = []
    if options.workers is not None and options.workers != count:
        notes.append(
            f"Cluster {cluster.name} keeps its {count} workers; "
            f"change them with capelin scale {cluster.name} --workers {options.workers}."
        )
    if options.control_plane_replicas not in {None, replicas}:
        wanted = options.control_plane_replicas
        notes.append(
            f"Cluster {cluster.name} keeps its {replicas} control plane replicas; change them "
            f"with capelin scale {cluster.name} --control-plane-replicas {wanted}."
        )
    return notes
