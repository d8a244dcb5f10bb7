"""The demo workload cluster: the ClusterClass of our own providers, and one Cluster of it."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final, cast

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass
from capelin.api.core import Namespace
from capelin.client import ApiError, Client
from capelin.errors import MissingError
from capelin_embedded.addresses import free_port
from capelin_embedded.management import render_template

from capelin_cli.clusters.topology import (
    DEMO_CLASS,
    MACHINES_LABEL,
    POD_NETWORK,
    ClusterOptions,
    new_cluster,
    rejected_cluster,
)
from capelin_cli.environments.connection import ClusterName
from capelin_cli.environments.containers import ContainerMachines, version_for
from capelin_cli.status.readiness import wait_until_ready
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.waiting import Deadline

NAME: Final = "demo"
_NAMESPACE: Final = "default"
_CONTAINERS: Final = "containers"
_AUTO: Final = "auto"
"""The image whose tag is the version of a machine."""
_ADDONS: Final = "capelin-container-addons"
_ADDON_FILES: Final = ("default-cni.yaml", "default-storage.yaml")
_POD_SUBNET: Final = re.compile(r"\{\{\s*\.PodSubnet\s*\}\}")
DEFAULT_PORT: Final = 6443


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """A cluster that `capelin up` brings up with its environment."""

    name: str
    namespace: str
    options: ClusterOptions
    manifests: Sequence[Unstructured] = ()
    """Objects that the management cluster needs for it."""


def on_containers(
    request: ClusterRequest, machines: ContainerMachines, version: str | None
) -> ClusterRequest:
    """A request for a cluster whose machines are containers.

    Args:
        request: The request of the user.
        machines: The engine and the image.
        version: The Kubernetes version of clusters that request none.
    """
    options = request.options
    image = machines.images[0] if len(machines.images) == 1 else _AUTO
    variables = {"containers": {"image": image}, **options.variables}
    return replace(
        request,
        options=replace(
            options,
            version=version_for(machines.kubernetes_version, options.version or version),
            variables=variables,
            endpoint=(machines.gateway, free_port(machines.gateway, DEFAULT_PORT)),
            labels={MACHINES_LABEL: _CONTAINERS},
        ),
        manifests=node_addons(request.namespace, machines.manifests),
    )


def node_addons(namespace: str, manifests: Mapping[str, str]) -> list[Unstructured]:
    """The objects by which Cluster API gives clusters on containers their pod network and storage.

    Cluster API applies them to each Cluster with the label.
    """
    metadata = {"name": _ADDONS, "namespace": namespace}
    data = {
        name: _POD_SUBNET.sub(POD_NETWORK, content)
        for name, content in manifests.items()
        if name in _ADDON_FILES
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data},
        {
            "apiVersion": "addons.cluster.x-k8s.io/v1beta2",
            "kind": "ClusterResourceSet",
            "metadata": metadata,
            "spec": {
                "clusterSelector": {"matchLabels": {MACHINES_LABEL: _CONTAINERS}},
                "resources": [{"kind": "ConfigMap", "name": _ADDONS}],
                "strategy": "ApplyOnce",
            },
        },
    ]


def demo_manifests() -> list[Unstructured]:
    """The ClusterClass of our own providers, and its templates."""
    file = files("capelin_cli") / "manifests" / f"clusterclass-{DEMO_CLASS}.yaml"
    return render_template(file.read_text(encoding="utf-8"), {})


def demo_class() -> ClusterClass:
    """The ClusterClass of our own providers in its initial form."""
    manifests = demo_manifests()
    return ClusterClass.read(
        next(manifest for manifest in manifests if manifest["kind"] == "ClusterClass")
    )


async def apply_cluster_class(client: Client, namespace: str = _NAMESPACE) -> list[str]:
    """Create our ClusterClass and its templates, or bring them up to date.

    It changes none that users have changed. Returns their names.
    """
    kept = await asyncio.gather(
        *(_apply_unless_changed(client, manifest, namespace) for manifest in demo_manifests())
    )
    return [name for name in kept if name]


async def _apply_unless_changed(client: Client, manifest: Unstructured, namespace: str) -> str:
    """Apply a manifest. If another user has changed the object, keep it and return its name."""
    manifest["metadata"].setdefault("namespace", namespace)
    resource = await client.resource_of(manifest)
    live = await client.find(resource, manifest["metadata"]["name"], namespace)
    if live is not None and changed_by_others(live):
        return f"{manifest['kind']} {manifest['metadata']['name']}"
    await client.apply(manifest)
    return ""


def changed_by_others(obj: Unstructured) -> bool:
    """Whether a manager other than the command wrote in an object's spec."""
    entries = cast("list[dict[str, Any]]", obj["metadata"].get("managedFields", []))
    return any(
        "f:spec" in entry.get("fieldsV1", {})
        for entry in entries
        if not entry.get("manager", "").startswith("capelin-cli") and not entry.get("subresource")
    )


async def bring_up_cluster(
    checklist: Checklist,
    client: Client,
    environment_version: str,
    request: ClusterRequest,
    deadline: Deadline,
    *,
    environment: str = "default",
) -> None:
    """Create a cluster unless it exists, and wait until it is ready."""
    name, namespace, options = request.name, request.namespace, request.options
    with checklist.step(f"cluster {name}") as line:
        checklist.update(line, "sending the Cluster and its class to the API server")
        if await client.find(Namespace, namespace) is None:
            await client.apply(Namespace.of(namespace))
        if options.cluster_class == DEMO_CLASS:
            for kept in await apply_cluster_class(client, namespace):
                checklist.say(f"{kept} was changed by another user, and stays as it is.")
        cluster = await client.find(Cluster, name, namespace)
        if cluster is None:
            version = options.version or environment_version
            await _create(client, request, version)
        else:
            for difference in differences(cluster, options, environment):
                checklist.say(difference)
            version = (cluster.spec.topology and cluster.spec.topology.version) or ""
        await wait_until_ready(client, name, namespace, deadline.left, checklist.showing(line))
        line.detail = f"Kubernetes {version}"


async def _create(client: Client, request: ClusterRequest, version: str) -> None:
    name, namespace, options = request.name, request.namespace, request.options
    for manifest in request.manifests:
        await client.apply(manifest)
    cluster_class = await find_class(
        client, options.cluster_class, namespace, named="as class: in the file"
    )
    try:
        await client.create(new_cluster(name, namespace, version, options, cluster_class))
    except ApiError as error:
        raise rejected_cluster(error, name, cluster_class) from None


async def find_class(
    client: Client, name: str, namespace: str, *, named: str = "with --class"
) -> ClusterClass:
    """A ClusterClass by name, and how users name it."""
    found = await client.find(ClusterClass, name, namespace)
    if found is not None:
        return found
    if await client.find(Namespace, namespace) is None:
        raise MissingError(
            f"Namespace {namespace} does not exist.",
            reason="A cluster is created in a namespace that exists.",
            hint=f"Create it first: capelin kubectl create namespace {namespace}.",
        )
    others = [other.name for other in (await client.list(ClusterClass, namespace)).items]
    raise MissingError(
        f"There is no ClusterClass {name} in namespace {namespace}.",
        reason=f"ClusterClasses there: {', '.join(others) or 'none'}.",
        hint=f"Name one of them {named}, or apply one with kubectl first.",
    )


def differences(
    cluster: Cluster, options: ClusterOptions, environment: str = "default"
) -> list[str]:
    """Which options differ from those of an existing demo cluster, and how to change them."""
    topology = cluster.spec.topology
    if topology is None:
        return []
    name = cluster.name
    command = ClusterName(name, cluster.namespace or "default", environment).command
    has_containers = cluster.metadata.labels.get(MACHINES_LABEL) == _CONTAINERS
    replicas = topology.control_plane.replicas
    workers = [*topology.workers.machine_pools, *topology.workers.machine_deployments]
    count = sum(topology.replicas or 0 for topology in workers)
    notes: list[str] = []
    if options.labels and not has_containers:
        notes.append(
            f"Cluster {name} keeps its simulated machines. For containers, delete it first: "
            f"{command('delete')}."
        )
    if options.workers is not None and options.workers != count:
        notes.append(
            f"Cluster {name} keeps its {count} workers. "
            f"Change them with {command('scale', '--workers', str(options.workers))}."
        )
    if not options.labels and options.version not in {None, topology.version}:
        notes.append(
            f"Cluster {name} keeps version {topology.version}. "
            f"Change it with {command('upgrade', options.version or '')}."
        )
    if options.control_plane_replicas not in {None, replicas}:
        wanted = str(options.control_plane_replicas)
        notes.append(
            f"Cluster {name} keeps its {replicas} control plane replicas. "
            f"Change them with {command('scale', '--control-plane-replicas', wanted)}."
        )
    return notes
