"""A scene about a Cluster that there is."""

from typing import Any

from capelin.api import Resource, Unstructured
from capelin.api.resource import plural_of
from capelin.api.views.capi import Cluster, ClusterClass
from capelin.api.views.capi.classes import ClassTemplate
from capelin.client import Client
from capelin.runtime.requests.scene import Scene, UsedPatch, UsedTemplate
from capelin.runtime.requests.topology import shown, used_patches, used_templates, variables


async def scene_of(
    client: Client, name: str, namespace: str, *, to_version: str | None = None
) -> Scene:
    """The Cluster of this name, with the templates of its ClusterClass as no patch has them yet.

    Raises:
        NotFound: there is no such Cluster, or its ClusterClass or a template is not there.
    """
    document = await client.get(Cluster.resource, name, namespace)
    cluster = Cluster.read(document)
    topology = cluster.spec.topology
    version = (topology.version if topology else None) or "v0.0.0"
    used: list[UsedTemplate] = []
    patches: list[UsedPatch] = []
    defaults: dict[str, Any] = {}
    if topology is not None and topology.class_ref.name:
        where = topology.class_ref.namespace or namespace
        shape = await client.get(ClusterClass, topology.class_ref.name, where)
        found = {
            reference: await _template(client, reference, where) for reference in _references(shape)
        }
        used = list(used_templates(cluster, shape, lambda one: found[_key(one)]))
        patches = list(used_patches(shape))
        defaults = _defaults(shape)
    return Scene(
        cluster=as_sent(document),
        from_version=version,
        to_version=to_version or version,
        templates=used,
        variables=variables(cluster, defaults),
        patches=patches,
    )


def as_sent(cluster: Unstructured) -> Unstructured:
    """A Cluster without what Cluster API keeps to itself."""
    metadata = {key: value for key, value in cluster["metadata"].items() if key != "managedFields"}
    if "annotations" in metadata:
        metadata["annotations"] = shown(metadata["annotations"])
    return {**{k: v for k, v in cluster.items() if k != "status"}, "metadata": metadata}


_Key = tuple[str, str, str]


def _key(template: ClassTemplate) -> _Key:
    said = template.template_ref
    return (
        ("", "", "") if said is None else (said.api_version or "", said.kind or "", said.name or "")
    )


def _references(shape: ClusterClass) -> set[_Key]:
    spec = shape.spec
    templates = [spec.infrastructure, spec.control_plane]
    if spec.control_plane is not None:
        templates.append(spec.control_plane.machine_infrastructure)
    for worker in (*spec.workers.machine_deployments, *spec.workers.machine_pools):
        templates += [worker.bootstrap, worker.infrastructure]
    return {_key(one) for one in templates if one is not None and one.template_ref is not None}


async def _template(client: Client, reference: _Key, namespace: str) -> Unstructured:
    api_version, kind, name = reference
    group, _, version = api_version.rpartition("/")
    found = await client.get(Resource(group, version, kind, plural_of(kind)), name, namespace)
    found["metadata"].pop("managedFields", None)
    return found


def _defaults(shape: ClusterClass) -> dict[str, Any]:
    return {
        variable.name: definition.schema_.openapi_schema["default"]
        for variable in shape.status.variables
        for definition in variable.definitions[:1]
        if "default" in definition.schema_.openapi_schema
    }
