"""Custom resource definitions from kinds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from capelin.api.conversion import missing_conversions
from capelin.api.objects import BaseObject, Column, Definition, Resource, Scale, Unstructured
from capelin.api.rules import Schema
from capelin.api.schema import Structure

_MAX_SELECTABLE: Final = 8


class SchemaError(TypeError):
    """A CRD cannot express a kind. The message names every field with the reason."""


def crd(
    *versions: type[BaseObject],
    provider: str | None = None,
    client_config: Mapping[str, Any] | None = None,
) -> Unstructured:
    """The CRD of a kind, from one class per version. The last version is stored.

    Args:
        versions: The classes. All have the same group, names and scope. Without functions that
            convert them (`converts`) they also have the same schema, because the API server then
            changes only `apiVersion`, and would drop fields that one of them lacks.
        provider: The kind's provider for the label `cluster.x-k8s.io/provider`, as clusterctl
            calls it (`control-plane-capelin`).
        client_config: How the API server calls the conversion webhook, if the kind needs one: a
            `url` or a `service`.

    Raises:
        SchemaError: A CRD cannot express the classes, something has no bounds, or versions differ.
    """
    newest = versions[-1]
    resource = newest.resource
    names = {(v.resource.group, v.resource.kind, v.resource.plural) for v in versions}
    if len(names) > 1:
        raise SchemaError(f"the versions of {resource.kind} differ in group or names: {names}")
    definition = newest.definition
    described = [_version(version, stored=version is newest) for version in versions]
    converted = _is_converted(resource, described)
    if converted and client_config is None:
        raise SchemaError(
            f"the versions of {resource.kind} need a conversion webhook: pass client_config, or "
            f"let Provider.of generate the CRD"
        )
    webhook = {"clientConfig": dict(client_config or {}), "conversionReviewVersions": ["v1"]}
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
            "versions": described,
            **({"conversion": {"strategy": "Webhook", "webhook": webhook}} if converted else {}),
        },
    }


def _is_converted(resource: Resource, versions: list[Unstructured]) -> bool:
    """Whether functions convert between all versions. If not, check that nothing has to."""
    names = [version["name"] for version in versions]
    missing = missing_conversions(resource.group, resource.kind, names)
    pairs = len(names) * (len(names) - 1)
    if len(missing) < pairs:
        if missing:
            ways = ", ".join(f"from {old} to {new}" for old, new in missing)
            raise SchemaError(f"@converts is missing for {resource.kind} {ways}")
        return True
    _check_same_schema(resource, versions)
    return False


def _check_same_schema(resource: Resource, versions: list[Unstructured]) -> None:
    *others, stored = versions
    for other in others:
        differences = sorted(
            _differences(other["schema"]["openAPIV3Schema"], stored["schema"]["openAPIV3Schema"])
        )
        if differences:
            raise SchemaError(
                f"the schemas of {resource.kind} {other['name']} and {stored['name']} differ, and "
                f"nothing converts between them. Users would lose data at "
                f"{', '.join(differences)}. Write functions with @converts, give both versions the "
                f"same fields (new fields are optional), or serve one version only."
            )


def _differences(old: Schema, new: Schema, path: str = "") -> Iterator[str]:
    """The paths at which two schemas differ in more than descriptions."""
    for key in old.keys() | new.keys():
        before, after = old.get(key), new.get(key)
        if key == "description" or before == after:
            continue
        if key == "properties":
            fields = cast("dict[str, Schema]", before or {})
            others = cast("dict[str, Schema]", after or {})
            for name in fields.keys() | others.keys():
                yield from _differences(
                    fields.get(name, {}), others.get(name, {}), f"{path}.{name}".lstrip(".")
                )
        elif isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(cast("Schema", before), cast("Schema", after), f"{path}[{key}]")
        else:
            yield f"{path}: {key}".removeprefix(": ")


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
    structure.problems += _selectable_problems(definition.selectable, schema)
    if structure.problems:
        what = f"{version.resource.api_version} {version.resource.kind}"
        raise SchemaError("\n  ".join([f"{what} cannot become a CRD:", *structure.problems]))
    warning = definition.deprecated
    deprecation = {"deprecated": True, "deprecationWarning": warning} if warning else {}
    version_entry: Unstructured = {
        "name": version.resource.version,
        "served": definition.served,
        "storage": stored,
        **deprecation,
        "schema": {"openAPIV3Schema": schema},
        "subresources": subresources,
        "selectableFields": [{"jsonPath": f".{path}"} for path in definition.selectable],
        "additionalPrinterColumns": [_column(column) for column in definition.columns],
    }
    return {key: value for key, value in version_entry.items() if value not in ({}, [])}


def _column(column: Column) -> Unstructured:
    entry: Unstructured = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.description:
        entry["description"] = column.description
    if column.priority:
        entry["priority"] = column.priority
    return entry


def _scale(scale: Scale) -> dict[str, str]:
    paths = {
        "specReplicasPath": scale.spec_replicas,
        "statusReplicasPath": scale.status_replicas,
        "labelSelectorPath": scale.selector,
    }
    return {key: path for key, path in paths.items() if path}


def _scale_problems(scale: Scale, schema: Schema) -> list[str]:
    problems = [
        f"scale: field {path} does not exist"
        for path in _scale(scale).values()
        if not _field(path, schema)
    ]
    return problems + [
        f"scale: {path} has to be Replicas, which are not negative and fit an int32"
        for path in (scale.spec_replicas, scale.status_replicas)
        if (found := _field(path, schema))
        and (found.get("minimum", -1) < 0 or found.get("format") != "int32")
    ]


def _selectable_problems(paths: Sequence[str], schema: Schema) -> list[str]:
    problems = [
        f"selectable: {path} has to be a string, an integer or a boolean that exists"
        for path in paths
        if _field(path, schema).get("type") not in {"string", "integer", "boolean"}
    ]
    too_many = len(paths) > _MAX_SELECTABLE
    return [*problems, *(["selectable: a kind has at most eight fields"] if too_many else [])]


def _field(path: str, schema: Schema) -> Schema:
    for step in path.removeprefix(".").split("."):
        schema = schema.get("properties", {}).get(step, {})
    return schema
