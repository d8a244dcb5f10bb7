"""Static checks of the kinds that keep a contract: their definitions, and core's permissions."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from capelin.api import Unstructured, plural_of
from capelin.contract import AGGREGATE_TO_MANAGER_LABEL

from capelin_conformance.providers.fields import contract_fields, items_at, mapping_at, type_problem
from capelin_conformance.providers.manifests import GENERATIONS, CustomKind, Subject
from capelin_conformance.providers.rules import NotApplicableError, Rule, rule

StaticCheck = Callable[[Subject], Iterator[str]]
"""Yields the problems of a subject."""

CORE_GROUPS: Final = frozenset(
    f"{name}.cluster.x-k8s.io" for name in ("bootstrap", "controlplane", "infrastructure")
)
"""The API groups in which core has all permissions."""

_VERBS: Final = frozenset({"create", "delete", "get", "list", "patch", "update", "watch"})
_SCALE_PATHS: Final = {
    "labelSelectorPath": ".status.selector",
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
}
_REQUIRES_TEMPLATE: Final = frozenset({"infra-machine", "bootstrap"})


@rule()
def scope(subject: Subject) -> Iterator[str]:
    """The kind and its template are namespaced.

    Source: *#all-resources-scope
    Fix: set spec.scope of the CustomResourceDefinition to Namespaced.
    """
    for kind in subject.both:
        if kind.scope != "Namespaced":
            yield f"{kind.crd_name} has the scope {kind.scope}"


@rule()
def crd_name(subject: Subject) -> Iterator[str]:
    """The CRD has the name that Cluster API computes from the group and the kind.

    Source: *#KIND-KINDlist-resource-definition
    Fix: use the plural that contract.CalculateCRDName of sigs.k8s.io/cluster-api computes.
    """
    for kind in subject.both:
        expected = f"{plural_of(kind.kind)}.{kind.group}"
        if kind.crd_name != expected:
            yield f"the CRD of {kind.kind} is {kind.crd_name}, and Cluster API looks for {expected}"


@rule()
def list_kind(subject: Subject) -> Iterator[str]:
    """The list kind has the name of the kind with the suffix List.

    Source: *#KIND-KINDlist-resource-definition
    Fix: set spec.names.listKind, or leave it out.
    """
    for kind in subject.both:
        if kind.list_kind != f"{kind.kind}List":
            yield f"the list kind of {kind.kind} is {kind.list_kind}"


@rule()
def contract_label(subject: Subject) -> Iterator[str]:
    """A label of the CRD names the versions that keep the contract, and the CRD serves all of them.

    Source: *#all-resources-version
    Fix: add the label cluster.x-k8s.io/v1beta2 with the versions, separated by underscores.
    """
    for kind in subject.both:
        if not any(kind.contract_versions(generation) for generation in GENERATIONS):
            labels = " or ".join(f"cluster.x-k8s.io/{generation}" for generation in GENERATIONS)
            yield f"{kind.crd_name} has no label {labels}"
        for generation in GENERATIONS:
            for version in kind.contract_versions(generation):
                if version not in kind.served:
                    label = f"cluster.x-k8s.io/{generation}={version}"
                    yield f"{kind.crd_name} has the label {label}, and does not serve it"


@rule(advice=True)
def current_contract(subject: Subject) -> Iterator[str]:
    """The CRD keeps version v1beta2 of the contract: core will drop v1beta1.

    Source: *#all-resources-version
    Fix: implement the fields of v1beta2, then add the label cluster.x-k8s.io/v1beta2.
    """
    for kind in subject.both:
        if kind.contract_versions("v1beta1") and not kind.contract_versions("v1beta2"):
            yield f"{kind.crd_name} keeps v1beta1 only"


@rule()
def status_subresource(subject: Subject) -> Iterator[str]:
    """The kind has a status subresource.

    Source: *#KIND-KINDlist-resource-definition
    Fix: add subresources.status to every version of the CustomResourceDefinition.
    """
    for version in subject.kind.versions:
        if "status" not in mapping_at(version, "subresources"):
            yield f"version {version.get('name')} of {subject.kind.crd_name} has none"


@rule()
def required_fields(subject: Subject) -> Iterator[str]:
    """The kind has the mandatory fields of its contract.

    Source: *#rules-contract-version-v1beta2
    Fix: add the fields to the schema with the types of the contract.
    """
    for field in contract_fields(subject.contract, subject.kind.generation):
        if field.required and subject.kind.field(field.path) is None:
            yield f"{subject.kind.kind} has no field {field.path}"


@rule()
def field_types(subject: Subject) -> Iterator[str]:
    """Fields with a name from the contract have the type from the contract.

    Source: *#rules-contract-version-v1beta2
    Fix: change the type of the field, or its name if it means something else.
    """
    for field in contract_fields(subject.contract, subject.kind.generation):
        schema = subject.kind.field(field.path)
        if schema is not None and (problem := type_problem(schema, field)):
            yield problem


@rule()
def template(subject: Subject) -> Iterator[str]:
    """The kind has a template kind, with the spec of its objects at spec.template.spec.

    Source: *#rules-contract-version-v1beta2
    Fix: add a CustomResourceDefinition for the kind with the suffix Template.
    """
    if subject.template is None:
        if subject.contract not in _REQUIRES_TEMPLATE:
            raise NotApplicableError("there is no template, so no ClusterClass can use the kind")
        yield f"there is no {subject.kind.kind}Template"
    elif subject.template.field("spec.template.spec") is None:
        yield f"{subject.template.kind} has no field spec.template.spec"


@rule("control-plane")
def scale_subresource(subject: Subject) -> Iterator[str]:
    """A control plane with replicas has a scale subresource with the paths of the contract.

    Source: control-plane#controlplane-replicas
    Fix: add subresources.scale with .spec.replicas, .status.replicas and .status.selector.
    """
    if subject.kind.field("spec.replicas") is None:
        raise NotApplicableError("the kind has no spec.replicas")
    scale = mapping_at(subject.kind.contract_version, "subresources.scale")
    if not scale:
        yield f"{subject.kind.kind} has no scale subresource"
        return
    for key, path in _SCALE_PATHS.items():
        if scale.get(key) != path:
            yield f"{key} is {scale.get(key)}, not {path}"


@rule(advice=True)
def terminal_failures(subject: Subject) -> Iterator[str]:
    """The kind has no failureReason and failureMessage: the contract gives up terminal failures.

    Source: *#KIND-terminal-failures
    Fix: report failures as conditions.
    """
    for name in ("failureReason", "failureMessage"):
        # An object that preserves unknown fields declares none of them.
        if subject.kind.field(f"status.{name}"):
            yield f"{subject.kind.kind} has status.{name}"


@rule()
def core_permissions(subject: Subject) -> Iterator[str]:
    """In an API group of its own, the provider grants core access to its kinds by aggregation.

    Source: *#all-resources-api-group
    Fix: ship a ClusterRole with the label cluster.x-k8s.io/aggregate-to-manager: "true".
    """
    if subject.kind.group in CORE_GROUPS:
        raise NotApplicableError(f"core has all permissions in {subject.kind.group}")
    roles = [
        role
        for role in subject.manifests.of_kind("ClusterRole")
        if mapping_at(role, "metadata.labels").get(AGGREGATE_TO_MANAGER_LABEL) == "true"
    ]
    for kind in subject.both:
        if missing := sorted(_VERBS - granted_verbs(roles, kind)):
            yield f"core may not {', '.join(missing)} {kind.plural}.{kind.group}"


def granted_verbs(roles: Iterable[Unstructured], kind: CustomKind) -> set[str]:
    """The verbs that roles grant on a kind."""
    found: set[str] = set()
    for role in roles:
        for entry in items_at(role, "rules"):
            groups, resources = entry.get("apiGroups") or (), entry.get("resources") or ()
            if {kind.group, "*"} & {*groups} and {kind.plural, "*"} & {*resources}:
                verbs = {*(entry.get("verbs") or ())}
                found |= set(_VERBS) if "*" in verbs else verbs
    return found


KIND_RULES: Final[tuple[Rule[StaticCheck], ...]] = (
    scope,
    crd_name,
    list_kind,
    contract_label,
    current_contract,
    status_subresource,
    required_fields,
    field_types,
    template,
    scale_subresource,
    terminal_failures,
    core_permissions,
)
