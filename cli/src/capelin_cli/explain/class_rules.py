"""Rules for ClusterClasses and their templates."""

from collections.abc import Iterator

from capelin_cli.explain.common_rules import template_missing
from capelin_cli.explain.facts import Facts, Subject, references_in, text_at
from capelin_cli.explain.finding import Finding, describe, reported
from capelin_cli.explain.model import Reference


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
    for path, reference in references_in(cluster_class.raw):
        if path.endswith(".templateRef"):
            yield path, reference


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
