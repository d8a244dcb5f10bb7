"""Rules for ClusterClasses and their templates."""

from collections.abc import Iterator
from typing import cast

from capelin.api import Unstructured

from capelin_infra.explain.common_rules import template_missing
from capelin_infra.explain.facts import Facts, Subject, group_of, text_at
from capelin_infra.explain.finding import Finding, describe, reported
from capelin_infra.explain.model import Reference


def class_of(cluster: Subject) -> Reference | None:
    """The ClusterClass of a Cluster with a topology."""
    name = text_at(cluster.raw, "spec", "topology", "classRef", "name")
    if not name:
        return None
    namespace = text_at(cluster.raw, "spec", "topology", "classRef", "namespace")
    return Reference(
        group=cluster.reference.group,
        kind="ClusterClass",
        name=name,
        namespace=namespace or cluster.reference.namespace,
    )


def templates_of(cluster_class: Subject) -> Iterator[tuple[str, Reference]]:
    """The templates that a ClusterClass names, by their fields."""
    namespace = cluster_class.reference.namespace
    for path, value in _fields(cluster_class.raw):
        name = text_at(value, "name")
        if path.endswith(".templateRef") and name:
            group, kind = group_of(text_at(value, "apiVersion")), text_at(value, "kind")
            yield path, Reference(group=group, kind=kind, name=name, namespace=namespace)


def _fields(obj: Unstructured) -> Iterator[tuple[str, object]]:
    """All fields of a spec with their paths. Not recursive, since specs may be deep."""
    left: list[tuple[str, object]] = [("spec", obj.get("spec"))]
    while left:
        path, value = left.pop(0)
        yield path, value
        if isinstance(value, list):
            items = enumerate(cast("list[object]", value))
            left += [(f"{path}[{number}]", item) for number, item in items]
        elif isinstance(value, dict):
            inner = cast("dict[str, object]", value).items()
            left += [(f"{path}.{name}", item) for name, item in inner]


def class_templates(cluster_class: Subject, facts: Facts) -> Iterator[Finding]:
    """A template of a ClusterClass does not exist."""
    for field, reference in templates_of(cluster_class):
        if facts.lacks(reference):
            yield template_missing(reference, facts, field)


def class_reconciled(cluster_class: Subject, _facts: Facts) -> Iterator[Finding]:
    """A ClusterClass reports errors in its templates or variables."""
    for type_ in ("VariablesReady", "RefVersionsUpToDate"):
        condition = cluster_class.unmet(type_)
        if condition is not None:
            yield reported(
                condition,
                "ClassFails",
                "the author of the ClusterClass",
                command=describe(cluster_class.reference),
            )
