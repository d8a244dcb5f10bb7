"""The rules that every contract kind has to follow."""

from capelin.conformance.contracts.rule import BOOK, ContractRule, Field
from capelin.contract import (
    AGGREGATE_TO_MANAGER_LABEL,
    PAUSED_ANNOTATION,
    TOPOLOGY_DRY_RUN_ANNOTATION,
    WATCH_LABEL,
)

CONTRACTS = f"{BOOK}/developer/providers/contracts"


def every_resource(contract: str, kind: str) -> tuple[ContractRule, ...]:
    """What holds for all of a provider's resources that core works with."""
    return (
        ContractRule(
            id=f"{contract}/scope",
            title="Scope",
            heading="All resources: scope",
            applies_to="all resources",
            says="Resources live in namespaces.",
            mandatory=True,
        ),
        ContractRule(
            id=f"{contract}/type-meta",
            title="Type and metadata",
            heading="All resources: TypeMeta and ObjectMeta field",
            applies_to="all resources",
            says="Resources have apiVersion, kind and metadata as every Kubernetes object.",
            mandatory=True,
        ),
        ContractRule(
            id=f"{contract}/api-group",
            title="API group",
            heading="All resources: API group",
            applies_to="all resources",
            says=(
                "In a group other than the one that core has permissions for, a ClusterRole "
                "that is aggregated to core's manager lets it read and write them."
            ),
            mandatory_if="the API group is not Cluster API's own",
            words=(AGGREGATE_TO_MANAGER_LABEL,),
        ),
        ContractRule(
            id=f"{contract}/contract-labels",
            title="Contract labels",
            heading="All resources: version",
            applies_to="CRDs",
            says=(
                "The CRD's labels say for each contract version which of its own versions "
                "follow it, joined by underscores; every one of them is served."
            ),
            mandatory=True,
            words=("cluster.x-k8s.io/v1beta1", "cluster.x-k8s.io/v1beta2"),
        ),
        ContractRule(
            id=f"{contract}/definition",
            title="Definition",
            heading=f"{kind}, {kind}List resource definition",
            applies_to=f"{kind} CRD",
            says=(
                "The CRD is named by the plural that core computes from the kind, and the list's "
                "kind is the kind with List behind it."
            ),
            mandatory=True,
        ),
    )


def conditions(contract: str, kind: str, says: str) -> ContractRule:
    """How an object tells people about its state."""
    return ContractRule(
        id=f"{contract}/conditions",
        title="Conditions",
        heading=f"{kind}: conditions",
        applies_to=kind,
        says=says,
        fields=(Field("status.conditions", "list of conditions by type"),),
    )


def terminal_failures(contract: str, kind: str, says: str) -> ContractRule:
    """How an object would say that it cannot recover."""
    return ContractRule(
        id=f"{contract}/terminal-failures",
        title="Terminal failures",
        heading=f"{kind}: terminal failures",
        applies_to=kind,
        says=says,
        fields=(Field("status.failureReason", "string"), Field("status.failureMessage", "string")),
    )


def pausing(contract: str, kind: str) -> ContractRule:
    """When controllers leave an object alone."""
    return ContractRule(
        id=f"{contract}/pausing",
        title="Pausing",
        heading=f"{kind}: pausing",
        applies_to=kind,
        says=(
            "Nothing is done for an object whose Cluster is paused or that has the annotation, "
            "and its Paused condition says so."
        ),
        fields=(Field("status.conditions[type=Paused]", "condition"),),
        words=(PAUSED_ANNOTATION,),
    )


def template(
    contract: str, kind: str, *, heading: str = "", mandatory: bool = False
) -> ContractRule:
    """What objects are made from in a ClusterClass."""
    return ContractRule(
        id=f"{contract}/template",
        title="Template",
        heading=heading or f"{kind}Template, {kind}TemplateList resource definition",
        applies_to=f"{kind}Template CRD",
        says="A kind with Template behind its name holds metadata and spec of objects to be made.",
        mandatory=mandatory,
        mandatory_if="" if mandatory else "ClusterClasses are supported",
        fields=(
            Field("spec.template.metadata", "labels and annotations"),
            Field("spec.template.spec", "the kind's spec"),
        ),
    )


def template_dry_run(contract: str, kind: str) -> ContractRule:
    """What immutability must not stand in the way of."""
    return ContractRule(
        id=f"{contract}/template-dry-run",
        title="Dry run of templates",
        heading=f"{kind}Template: support for SSA dry run",
        applies_to=f"{kind}Template",
        says=(
            "What is immutable in a template may still be changed in a dry run of the topology "
            "controller, which marks the template for it."
        ),
        mandatory_if="ClusterClasses are supported",
        words=(TOPOLOGY_DRY_RUN_ANNOTATION,),
    )


def several_managers(contract: str, heading: str) -> ContractRule:
    """What lets several managers of one provider share a management cluster."""
    return ContractRule(
        id=f"{contract}/several-managers",
        title="Several managers",
        heading=heading,
        applies_to="manager",
        says=(
            "The manager takes --namespace and --watch-filter, so that several can share a "
            "management cluster."
        ),
        mandatory_if="clusterctl is supported",
        words=(WATCH_LABEL,),
    )


def clusterctl(contract: str) -> ContractRule:
    """That there is one more contract to follow."""
    return ContractRule(
        id=f"{contract}/clusterctl",
        title="clusterctl",
        heading="Clusterctl support",
        applies_to="release",
        says="The provider's release follows the clusterctl contract.",
        mandatory_if="clusterctl is supported",
    )
