"""What clusterctl asks of a provider's release, and of its objects when they are moved."""

from capelin.conformance.contracts.rule import BOOK, Contract, ContractRule, Field
from capelin.conformance.contracts.shared import CONTRACTS
from capelin.contract import (
    BLOCK_MOVE_ANNOTATION,
    CLUSTERCTL_LABEL,
    DELETE_FOR_MOVE_ANNOTATION,
    MOVE_HIERARCHY_LABEL,
    MOVE_LABEL,
    PROVIDER_LABEL,
    SKIP_CRD_NAME_CHECK_ANNOTATION,
)

_NAME = "clusterctl"
_COMPONENTS = "components YAML"
_TEMPLATES = "cluster templates"
_CLASSES = "ClusterClass definitions"
_OBJECTS = "provider's objects"


CLUSTERCTL = Contract(
    name=_NAME,
    title="clusterctl",
    document=f"{CONTRACTS}/clusterctl",
    rules=(
        ContractRule(
            id=f"{_NAME}/repository",
            title="Repository",
            heading="Provider Repositories",
            applies_to="release",
            says=(
                "A well-known place has metadata and components of every release; it should have "
                "cluster templates, and may have ClusterClasses."
            ),
            mandatory=True,
        ),
        ContractRule(
            id=f"{_NAME}/github",
            title="GitHub releases",
            heading="Creating a provider repository on GitHub",
            applies_to="release",
            says="The release's tag is a semantic version, and its assets are the files.",
            mandatory_if="the repository is on GitHub",
        ),
        ContractRule(
            id=f"{_NAME}/local",
            title="Local repositories",
            heading="Creating a local provider repository",
            applies_to="release",
            says=(
                "On a disk, the files of a release are in a folder named by its semantic version, "
                "in a folder named by the provider's label."
            ),
            mandatory_if="the repository is on a disk",
        ),
        ContractRule(
            id=f"{_NAME}/metadata",
            title="Metadata",
            heading="Metadata YAML",
            applies_to="metadata.yaml",
            says=(
                "metadata.yaml says which release series follows which contract, the same that "
                "the CRDs of the release say."
            ),
            mandatory=True,
        ),
        ContractRule(
            id=f"{_NAME}/metadata-validation",
            title="Validation of metadata",
            heading="Validation Rules",
            applies_to="metadata.yaml",
            says="metadata.yaml has its API version and kind, and at least one release series.",
            mandatory=True,
            fields=(
                Field("apiVersion", "clusterctl.cluster.x-k8s.io/v1alpha3"),
                Field("kind", "Metadata"),
                Field("releaseSeries", "list of major, minor and contract"),
            ),
        ),
        ContractRule(
            id=f"{_NAME}/components",
            title="Components",
            heading="Components YAML",
            applies_to=_COMPONENTS,
            says="One YAML file has everything that installs the provider.",
            mandatory=True,
        ),
        ContractRule(
            id=f"{_NAME}/components-name",
            title="Name of the components file",
            heading="Naming conventions",
            applies_to=_COMPONENTS,
            says="The file is named by the provider's type, with -components.yaml behind it.",
        ),
        ContractRule(
            id=f"{_NAME}/crd-names",
            title="Names of CRDs",
            heading="Supported Annotations",
            applies_to=_COMPONENTS,
            says=(
                "CRDs have the names that core computes, but for those that core never looks for "
                "and that say so."
            ),
            mandatory=True,
            words=(SKIP_CRD_NAME_CHECK_ANNOTATION,),
            document=f"{BOOK}/reference/api/labels-and-annotations",
        ),
        ContractRule(
            id=f"{_NAME}/components-namespace",
            title="Namespace of the components",
            heading="Target namespace",
            applies_to=_COMPONENTS,
            says=(
                "There is at most one Namespace, and everything that lives in a namespace lives "
                "in it."
            ),
            mandatory=True,
        ),
        ContractRule(
            id=f"{_NAME}/manager-container",
            title="The manager's container",
            heading="Controllers & Watching namespace",
            applies_to=_COMPONENTS,
            says=(
                "Controllers and extension servers are Deployments, and the container that runs "
                "them is called manager."
            ),
            mandatory=True,
        ),
        ContractRule(
            id=f"{_NAME}/namespace-flag",
            title="The flag --namespace",
            heading="Controllers & Watching namespace",
            applies_to="manager",
            says=(
                "A manager of controllers takes --namespace, where an empty one means all "
                "namespaces."
            ),
            mandatory=True,
        ),
        ContractRule(
            id=f"{_NAME}/images",
            title="Images",
            heading="Controllers & Watching namespace",
            applies_to=_COMPONENTS,
            says="Images are called by their canonical names.",
        ),
        ContractRule(
            id=f"{_NAME}/components-variables",
            title="Variables of the components",
            heading="Variables",
            applies_to=_COMPONENTS,
            says=(
                "Variables look like ${NAME}, begin with the provider's name, may have a default, "
                "and are documented."
            ),
        ),
        ContractRule(
            id=f"{_NAME}/labels",
            title="Labels",
            heading="Labels",
            applies_to=_COMPONENTS,
            says="Every object says which provider it is part of.",
            words=(PROVIDER_LABEL,),
        ),
        ContractRule(
            id=f"{_NAME}/templates",
            title="Cluster templates",
            heading="Workload cluster templates",
            applies_to=_TEMPLATES,
            says=(
                "A file with every object of a new workload cluster may stand beside the "
                "components, called cluster-template.yaml or cluster-template-FLAVOR.yaml."
            ),
        ),
        ContractRule(
            id=f"{_NAME}/templates-namespace",
            title="Namespace of cluster templates",
            heading="Target namespace",
            nth=2,
            applies_to=_TEMPLATES,
            says="A template takes its namespace as given, and all of its objects are in it.",
            mandatory_if="there are cluster templates",
        ),
        ContractRule(
            id=f"{_NAME}/templates-variables",
            title="Variables of cluster templates",
            heading="Common variables",
            applies_to=_TEMPLATES,
            says="What clusterctl has flags for is called as clusterctl calls it.",
            words=(
                "${CLUSTER_NAME}",
                "${NAMESPACE}",
                "${KUBERNETES_VERSION}",
                "${CONTROL_PLANE_MACHINE_COUNT}",
                "${WORKER_MACHINE_COUNT}",
            ),
        ),
        ContractRule(
            id=f"{_NAME}/classes",
            title="ClusterClasses",
            heading="ClusterClass definitions",
            applies_to=_CLASSES,
            says=(
                "A file with a ClusterClass and its templates may stand beside the components, "
                "called clusterclass-NAME.yaml by the ClusterClass's own name."
            ),
        ),
        ContractRule(
            id=f"{_NAME}/classes-namespace",
            title="Namespace of ClusterClasses",
            heading="Target namespace",
            nth=3,
            applies_to=_CLASSES,
            says=(
                "Neither the references nor the objects name a namespace, and no object is part "
                "of two ClusterClasses."
            ),
            mandatory_if="there are ClusterClasses",
        ),
        ContractRule(
            id=f"{_NAME}/classes-variables",
            title="Variables of ClusterClasses",
            heading="Variables",
            nth=3,
            applies_to=_CLASSES,
            says="There are no environment variables in them: ClusterClasses have their own.",
        ),
        ContractRule(
            id=f"{_NAME}/owner-references",
            title="Owner references",
            heading="OwnerReferences chain",
            applies_to=_OBJECTS,
            says=(
                "Every object belongs, directly or through others, to a Cluster. Core sees to it "
                "for what it refers to, and the provider for the rest."
            ),
            mandatory=True,
        ),
        ContractRule(
            id=f"{_NAME}/transformations",
            title="What clusterctl changes",
            heading="Components YAML transformations",
            applies_to=_COMPONENTS,
            says=(
                "Everything still works after clusterctl has filled in variables, set the "
                "namespace and added labels."
            ),
            mandatory=True,
            words=(CLUSTERCTL_LABEL, PROVIDER_LABEL),
        ),
        ContractRule(
            id=f"{_NAME}/external-objects",
            title="Objects from elsewhere",
            heading="Links to external objects",
            applies_to=_COMPONENTS,
            says="Components and templates need nothing that is not in them.",
        ),
        ContractRule(
            id=f"{_NAME}/move",
            title="Moving",
            heading="Move",
            applies_to=_OBJECTS,
            says=(
                "What is to move is of a CRD that clusterctl installed, and belongs to a Cluster, "
                "is a user's certificate by its name, or has a label that says so."
            ),
            words=(CLUSTERCTL_LABEL, MOVE_LABEL, MOVE_HIERARCHY_LABEL, DELETE_FOR_MOVE_ANNOTATION),
        ),
        ContractRule(
            id=f"{_NAME}/move-pause",
            title="Leaving moved objects alone",
            heading="Move",
            applies_to="controllers",
            says=(
                "Controllers leave what belongs to a paused Cluster alone; one that has work to "
                "do first holds the move up."
            ),
            mandatory=True,
            words=(BLOCK_MOVE_ANNOTATION,),
        ),
        ContractRule(
            id=f"{_NAME}/move-status",
            title="Nothing in the status alone",
            heading="Move",
            applies_to=_OBJECTS,
            says="A status can be made anew from spec, metadata and the world: it does not move.",
            mandatory=True,
        ),
    ),
)
