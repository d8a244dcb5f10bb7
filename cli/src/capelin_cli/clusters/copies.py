"""A copy of a cluster under another name: its objects of Cluster API, from those in a backup."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Secret
from capelin.contract import CLUSTER_NAME_LABEL, secret_name
from capelin.errors import InvalidInputError
from capelin_control_plane.backup.objects import ClusterObjects, references_in
from capelin_control_plane.keys.encryption_keys import ENCRYPTION_ANNOTATION

from capelin_cli.clusters.restores import IN_PROGRESS, Identity, LostCluster
from capelin_cli.clusters.topology import check_cluster_name
from capelin_cli.environments.connection import ClusterName

_CLUSTER: Final = Cluster.resource.kind
_REQUESTS: Final = "controlplane.cluster.x-k8s.io/"
"""Annotations of control planes have this prefix: requests to the source, and its state."""


async def begun_copy(source: ClusterName, new: ClusterName) -> str | None:
    """The backup of a copy that an earlier command did not complete. None if none has begun.

    Raises:
        InvalidInputError: another cluster or copy has the name, or the name is invalid.
    """
    check_cluster_name(new.name)
    async with new.client() as client:
        cluster = await client.find(Cluster, new.name, new.namespace)
    begun = None if cluster is None else cluster.metadata.annotations.get(IN_PROGRESS)
    if source.name == new.name or (cluster is not None and begun is None):
        raise InvalidInputError(
            f"Cluster {new.name} exists in namespace {new.namespace}.",
            hint="Choose another name for the copy.",
        )
    return None if begun is None else begun_backup(source.name, new, begun)


def begun_backup(source: str, new: ClusterName, begun: str) -> str:
    """The backup of a cluster's copy, from the value of `IN_PROGRESS`.

    Raises:
        InvalidInputError: another cluster is copied, or restored.
    """
    other, _, backup = begun.rpartition("/")
    if other != source:
        raise InvalidInputError(
            f"Cluster {new.name} exists in namespace {new.namespace}.",
            reason=f"It is being created from backup {backup} of cluster {other}.",
            hint="Choose another name for the copy.",
        )
    return backup


def copy_of(source: LostCluster, name: str) -> LostCluster:
    """The objects and keys of a cluster that copies another one.

    Only the Cluster, its control plane and its infrastructure are copied, and the class stays the
    same one. The copy has no workers: they would use the volumes and addresses of the source.
    """
    old = source.manifest.cluster
    items = {(item["kind"], str(item["metadata"]["name"])): item for item in source.objects.items}
    cluster = items[_CLUSTER, old]
    own = {(it.kind, it.name) for it in references_in(cluster["spec"]) if it.kind != "ClusterClass"}
    names = dict.fromkeys(((_CLUSTER, old), *sorted(own)), name)
    kept: list[Unstructured] = []
    queue: list[Identity] = [(_CLUSTER, old)]
    while queue:
        identity = queue.pop(0)
        item = items.pop(identity, None)
        if item is None:
            continue
        if identity == (_CLUSTER, old):
            item = _without_workers(item)
        queue += [(it.kind, it.name) for it in references_in(item["spec"])]
        kept.append(_renamed(item, old, names) if identity in names else item)
    keys = secret_name(old, "encryption")
    secrets = [_renamed_secret(secret, name) for secret in source.secrets if secret.name == keys]
    needed = {f"{kind} {original}" for kind, original in own}
    omitted = tuple(it for it in source.objects.omitted if it in needed)
    return replace(source, secrets=tuple(secrets), objects=ClusterObjects(tuple(kept), omitted))


def _renamed(item: Unstructured, old: str, names: Mapping[Identity, str]) -> Unstructured:
    """A Cluster or an object that it refers to, under its new name."""
    metadata: dict[str, Any] = dict(item["metadata"])
    metadata["name"] = names[item["kind"], metadata["name"]]
    if (labels := metadata.get("labels", {})).get(CLUSTER_NAME_LABEL) == old:
        metadata["labels"] = {**labels, CLUSTER_NAME_LABEL: names[_CLUSTER, old]}
    metadata["annotations"] = {
        key: value
        for key, value in metadata.get("annotations", {}).items()
        # The copy has the keys of stored objects, and CAs of its own.
        if key == ENCRYPTION_ANNOTATION or not key.startswith(_REQUESTS)
    }
    metadata["ownerReferences"] = [
        {**owner, "name": names.get((owner["kind"], owner["name"]), owner["name"])}
        for owner in metadata.get("ownerReferences", ())
    ]
    return {**item, "metadata": metadata, "spec": _with_names(item["spec"], names)}


def _with_names(value: object, names: Mapping[Identity, str], key: str = "") -> Any:
    """A field whose references have the new names."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        if key.lower().endswith("ref"):
            identity = str(fields.get("kind")), str(fields.get("name"))
            return {**fields, "name": names[identity]} if identity in names else dict(fields)
        return {name: _with_names(field, names, name) for name, field in fields.items()}
    return value


def _without_workers(cluster: Unstructured) -> Unstructured:
    spec: dict[str, Any] = dict(cluster["spec"])
    if "topology" in spec:
        topology = cast("Mapping[str, Any]", spec["topology"])
        spec["topology"] = {key: value for key, value in topology.items() if key != "workers"}
    return {**cluster, "spec": spec}


def _renamed_secret(secret: Secret, cluster: str) -> Secret:
    metadata = secret.metadata.model_copy(
        update={
            "name": secret_name(cluster, "encryption"),
            "labels": {**secret.metadata.labels, CLUSTER_NAME_LABEL: cluster},
        }
    )
    return secret.model_copy(update={"metadata": metadata})
