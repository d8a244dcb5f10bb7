"""Custom resource definitions from our kinds."""

from capelin.api.objects import BaseObject, Column, Definition, Resource, Scale, Unstructured
from capelin.api.rules import Schema
from capelin.api.schema import Structure


class SchemaError(TypeError):
    """A kind says something that a CRD cannot; tells of every such place."""


def crd(*versions: type[BaseObject], provider: str | None = None) -> Unstructured:
    """The CRD of a kind, from one class a version, the oldest first; the last is what is stored.

    Args:
        versions: The classes. All have the same group, names and scope.
        provider: The provider that the kind is part of, as clusterctl calls it
            (`control-plane-capelin`), for the label `cluster.x-k8s.io/provider`.

    Raises:
        SchemaError: The classes say something that a CRD cannot, or leave something unbounded.
    """
    newest = versions[-1]
    resource = newest.resource
    names = {(v.resource.group, v.resource.kind, v.resource.plural) for v in versions}
    if len(names) > 1:
        raise SchemaError(f"the versions of {resource.kind} differ in group or names: {names}")
    definition = newest.definition
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.{resource.group}",
            "labels": _labels(versions, provider),
        },
        "spec": {
            "group": resource.group,
            "names": _names(resource, definition),
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [_version(one, stored=one is newest) for one in versions],
        },
    }


def _labels(versions: tuple[type[BaseObject], ...], provider: str | None) -> dict[str, str]:
    contracts: dict[str, list[str]] = {}
    for version in versions:
        for contract in version.definition.contracts:
            contracts.setdefault(contract, []).append(version.resource.version)
    labels = {
        f"cluster.x-k8s.io/{contract}": "_".join(served) for contract, served in contracts.items()
    }
    if provider:
        labels["cluster.x-k8s.io/provider"] = provider
    if labels:
        # clusterctl moves and describes only kinds with this label.
        labels["clusterctl.cluster.x-k8s.io"] = ""
    return dict(sorted({**labels, **(versions[-1].definition.labels or {})}.items()))


def _names(resource: Resource, definition: Definition) -> Unstructured:
    names: Unstructured = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
    }
    if definition.short_names:
        names["shortNames"] = list(definition.short_names)
    if definition.categories:
        names["categories"] = list(definition.categories)
    return names


def _version(version: type[BaseObject], *, stored: bool) -> Unstructured:
    definition = version.definition
    structure = Structure()
    schema = structure.of_kind(version)
    subresources: Unstructured = {}
    if "status" in schema["properties"]:
        subresources["status"] = {}
    if definition.scale:
        subresources["scale"] = _scale(definition.scale)
        structure.problems += _scale_problems(definition.scale, schema)
    if structure.problems:
        what = f"{version.resource.api_version} {version.resource.kind}"
        raise SchemaError("\n  ".join([f"{what} cannot become a CRD:", *structure.problems]))
    told: Unstructured = {
        "name": version.resource.version,
        "served": True,
        "storage": stored,
        "schema": {"openAPIV3Schema": schema},
        "subresources": subresources,
        "additionalPrinterColumns": [_column(column) for column in definition.columns],
    }
    return {key: value for key, value in told.items() if value not in ({}, [])}


def _column(column: Column) -> Unstructured:
    said: Unstructured = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.description:
        said["description"] = column.description
    if column.priority:
        said["priority"] = column.priority
    return said


def _scale(scale: Scale) -> dict[str, str]:
    paths = {
        "specReplicasPath": scale.spec_replicas,
        "statusReplicasPath": scale.status_replicas,
        "labelSelectorPath": scale.selector,
    }
    return {key: path for key, path in paths.items() if path}


def _scale_problems(scale: Scale, schema: Schema) -> list[str]:
    problems = [
        f"scale: there is no field {path}"
        for path in _scale(scale).values()
        if not _field(path, schema)
    ]
    return problems + [
        f"scale: {path} has to be Replicas, which are not negative and fit an int32"
        for path in (scale.spec_replicas, scale.status_replicas)
        if (found := _field(path, schema))
        and (found.get("minimum", -1) < 0 or found.get("format") != "int32")
    ]


def _field(path: str, schema: Schema) -> Schema:
    for step in path.removeprefix(".").split("."):
        schema = schema.get("properties", {}).get(step, {})
    return schema
