"""The objects of Cluster API that belong to a Cluster, for its backups and for a new cluster."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster, MachineDeployment, MachinePool
from capelin.client import Client, Forbidden, NotServed
from capelin.contract import BLOCK_MOVE_ANNOTATION, CLUSTER_NAME_LABEL, served_resource
from capelin.controller import Permission

from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION
from capelin_control_plane.desired.control_plane import (
    ADDRESS_ANNOTATION,
    MOVE_ANNOTATION,
    MOVED_FROM_ANNOTATION,
    RESTORE_ANNOTATION,
)

_MOST_OBJECTS: Final = 500
_DROPPED: Final = frozenset(
    {
        # They describe the lost management cluster.
        ADDRESS_ANNOTATION,
        BACKUP_ANNOTATION,
        BLOCK_MOVE_ANNOTATION,
        MOVE_ANNOTATION,
        MOVED_FROM_ANNOTATION,
        RESTORE_ANNOTATION,
        "kubectl.kubernetes.io/last-applied-configuration",
    }
)
_IDENTITIES: Final = ("providerID", "providerIDList")
"""Fields of machines, which new machines get again."""


# Objects of other providers' kinds are omitted: the provider may not read them.
BACKED_UP: Final = (
    Permission("cluster.x-k8s.io", ("machinedeployments", "machinepools"), ("get", "list")),
    Permission("cluster.x-k8s.io", ("clusterclasses",), ("get",)),
    Permission(
        "bootstrap.cluster.x-k8s.io", ("kubeadmconfigs", "kubeadmconfigtemplates"), ("get",)
    ),
    Permission("controlplane.cluster.x-k8s.io", ("capelincontrolplanetemplates",), ("get",)),
    Permission(
        "infrastructure.cluster.x-k8s.io",
        (
            "capelinclusters",
            "capelinclustertemplates",
            "capelinmachinepools",
            "capelinmachinepooltemplates",
            "capelinmachinetemplates",
        ),
        ("get",),
    ),
)
"""Permissions to read the objects of a Cluster."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to an object of the same namespace."""

    group: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The objects of a Cluster, without machines."""

    items: tuple[Unstructured, ...]
    omitted: tuple[str, ...] = ()
    """Objects that the provider may not read."""
    is_complete: bool = True
    """Whether all others are here. Their number has a limit."""

    def dump(self) -> bytes:
        """The content of the file in a backup."""
        content = {"apiVersion": "v1", "kind": "List", "items": self.items, "omitted": self.omitted}
        return json.dumps(content).encode()

    @classmethod
    def load(cls, content: bytes) -> "ClusterObjects":
        """Read the file of a backup.

        Raises:
            BackupError: it has another format.
        """
        try:
            read: dict[str, Any] = json.loads(content)
            return cls(tuple(read["items"]), tuple(read["omitted"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BackupError("the objects in the backup cannot be read") from error


async def read_cluster_objects(client: Client, namespace: str, cluster: str) -> ClusterObjects:
    """The objects of a Cluster: those that it refers to, its pools and deployments, and theirs."""
    found: dict[Reference, Unstructured] = {}
    omitted: list[str] = []
    queue = [Reference(Cluster.resource.group, Cluster.resource.kind, cluster)]
    for kind in (MachineDeployment, MachinePool):
        listed = await client.list(kind.resource, namespace, labels={CLUSTER_NAME_LABEL: cluster})
        queue += [
            Reference(kind.resource.group, kind.resource.kind, item["metadata"]["name"])
            for item in listed.items
        ]
    resources: dict[tuple[str, str], Resource | None] = {}
    while queue:
        reference = queue.pop(0)
        if reference in found or str(reference) in omitted:
            continue
        if len(found) + len(omitted) >= _MOST_OBJECTS:
            # The backup of etcd is worth more than the others.
            return ClusterObjects(tuple(found.values()), tuple(omitted), is_complete=False)
        kind = reference.group, reference.kind
        if kind not in resources:
            resources[kind] = await served_resource(client, *kind)
        manifest = await _read(client, resources[kind], namespace, reference.name)
        if manifest is None:
            omitted.append(str(reference))
            continue
        found[reference] = cleaned(manifest)
        queue += references_in(manifest)
    return ClusterObjects(tuple(found.values()), tuple(omitted))


async def _read(
    client: Client, resource: Resource | None, namespace: str, name: str
) -> Unstructured | None:
    if resource is None or not resource.namespaced:
        return None
    try:
        manifest = await client.find(resource, name, namespace)
    except (Forbidden, NotServed):
        return None
    if manifest is None:
        return None
    version = f"{resource.group}/{resource.version}"
    return {"apiVersion": version, "kind": resource.kind, **manifest}


def references_in(value: object, key: str = "") -> Iterator[Reference]:
    """The references in a manifest, in fields such as `infrastructureRef`."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        if key.lower().endswith("ref") and {"kind", "name"} <= fields.keys():
            group = fields.get("apiGroup") or str(fields.get("apiVersion", "")).rpartition("/")[0]
            if group.endswith("cluster.x-k8s.io"):
                yield Reference(group, str(fields["kind"]), str(fields["name"]))
            return
        if key == "classRef":
            yield Reference(Cluster.resource.group, "ClusterClass", str(fields.get("name", "")))
        for name, field in fields.items():
            if name != "status":
                yield from references_in(field, name)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from references_in(item, key)


def cleaned(manifest: Unstructured) -> Unstructured:
    """An object without the fields that belong to one management cluster."""
    metadata: dict[str, Any] = manifest["metadata"]
    annotations = {
        name: value
        for name, value in metadata.get("annotations", {}).items()
        if name not in _DROPPED
    }
    owners = [
        {name: value for name, value in owner.items() if name != "uid"}
        for owner in metadata.get("ownerReferences", ())
    ]
    kept = {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        **({"labels": metadata["labels"]} if metadata.get("labels") else {}),
        **({"annotations": annotations} if annotations else {}),
        **({"ownerReferences": owners} if owners else {}),
    }
    spec = {
        name: value for name, value in manifest.get("spec", {}).items() if name not in _IDENTITIES
    }
    if manifest["kind"] == MachinePool.resource.kind:
        spec = _without_bootstrap_data(spec)
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": kept,
        "spec": spec,
    }


def _without_bootstrap_data(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A MachinePool's spec that makes core wait for new bootstrap data."""
    template = spec.get("template", {})
    inner = template.get("spec", {})
    if "configRef" not in inner.get("bootstrap", {}):
        return dict(spec)
    bootstrap = {"configRef": inner["bootstrap"]["configRef"]}
    return {**spec, "template": {**template, "spec": {**inner, "bootstrap": bootstrap}}}


def owners_first(items: Sequence[Unstructured]) -> list[Unstructured]:
    """The objects in an order in which each one follows its owners, classes first."""
    names = {_identity(item): item for item in items}
    ordered: dict[tuple[str, str], Unstructured] = {}

    def add(item: Unstructured) -> None:
        if _identity(item) in ordered:
            return
        for owner in item["metadata"].get("ownerReferences", ()):
            other = names.get((owner["kind"], owner["name"]))
            if other is not None and other is not item:
                add(other)
        ordered.setdefault(_identity(item), item)

    for item in sorted(items, key=lambda item: item["kind"] != "ClusterClass"):
        add(item)
    return list(ordered.values())


def with_owners(item: Unstructured, uids: Mapping[tuple[str, str], str]) -> Unstructured:
    """An object with the UIDs of its owners in a new management cluster. It loses other owners."""
    owners = [
        {**owner, "uid": uids[owner["kind"], owner["name"]]}
        for owner in item["metadata"].get("ownerReferences", ())
        if (owner["kind"], owner["name"]) in uids
    ]
    metadata = {key: value for key, value in item["metadata"].items() if key != "ownerReferences"}
    if owners:
        metadata["ownerReferences"] = owners
    return {**item, "metadata": metadata}


def without_endpoint(item: Unstructured) -> Unstructured:
    """An object whose address a backend has to choose again."""
    spec = {name: value for name, value in item["spec"].items() if name != "controlPlaneEndpoint"}
    return {**item, "spec": spec}


def _identity(item: Unstructured) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]
