"""What core asks of a control plane."""

from capelin.conformance.contracts.rule import BOOK, Contract, ContractRule, Field
from capelin.conformance.contracts.shared import (
    CONTRACTS,
    clusterctl,
    conditions,
    every_resource,
    pausing,
    several_managers,
    template,
    terminal_failures,
)
from capelin.contract import (
    CLUSTER_NAME_LABEL,
    CONTROL_PLANE_LABEL,
    CONTROL_PLANE_NAME_LABEL,
    PENDING_HOOKS_ANNOTATION,
    SECRET_TYPE,
    UPDATE_IN_PROGRESS_ANNOTATION,
)

_NAME = "control-plane"
_KIND = "ControlPlane"
_MACHINES = "instances are Machines"
_TEMPLATE = "spec.machineTemplate"

CONTROL_PLANE = Contract(
    name=_NAME,
    title=_KIND,
    document=f"{CONTRACTS}/control-plane",
    rules=(
        *every_resource(_NAME, _KIND),
        ContractRule(
            id=f"{_NAME}/endpoint",
            title="Endpoint",
            heading="ControlPlane: endpoint",
            applies_to=_KIND,
            says=(
                "A provider that makes the endpoint writes host and port into its spec; one that "
                "does not waits until the Cluster has them."
            ),
            mandatory_if="nobody else provides the endpoint",
            fields=(
                Field("spec.controlPlaneEndpoint.host", "string"),
                Field("spec.controlPlaneEndpoint.port", "int32"),
            ),
        ),
        ContractRule(
            id=f"{_NAME}/replicas",
            title="Replicas",
            heading="ControlPlane: replicas",
            applies_to=_KIND,
            says=(
                "The spec says how many replicas there are to be, the status counts them by "
                "state, and the scale subresource joins both."
            ),
            mandatory_if="the control plane has a number of instances",
            fields=(
                Field("spec.replicas", "int32"),
                Field("status.selector", "string"),
                Field("status.replicas", "int32"),
                Field("status.readyReplicas", "int32"),
                Field("status.availableReplicas", "int32", v1beta1="status.unavailableReplicas"),
                Field("status.upToDateReplicas", "int32", v1beta1="status.updatedReplicas"),
            ),
        ),
        ContractRule(
            id=f"{_NAME}/version",
            title="Version",
            heading="ControlPlane: version",
            applies_to=_KIND,
            says=(
                "The spec takes a semantic version, adding the v where it lacks; the status "
                "lists those that run, the oldest first, and never one that does not run yet."
            ),
            mandatory_if="the provider decides on the Kubernetes version, or has a ClusterClass",
            fields=(
                Field("spec.version", "string"),
                Field("status.versions", "list of version and replicas", v1beta1="status.version"),
                Field("status.version", "string"),
            ),
        ),
        ContractRule(
            id=f"{_NAME}/machines",
            title="Machines",
            heading="ControlPlane: machines",
            applies_to=_KIND,
            says=(
                "Instances that are Machines are marked as such and shaped by a template, whose "
                "metadata and timeouts change in place."
            ),
            mandatory_if=_MACHINES,
            fields=(
                Field(f"{_TEMPLATE}.metadata", "labels and annotations"),
                Field(
                    f"{_TEMPLATE}.spec.infrastructureRef",
                    "reference by group, kind and name",
                    v1beta1=f"{_TEMPLATE}.infrastructureRef",
                ),
                Field(
                    f"{_TEMPLATE}.spec.deletion.nodeDrainTimeoutSeconds",
                    "int32",
                    v1beta1=f"{_TEMPLATE}.nodeDrainTimeout",
                ),
                Field(
                    f"{_TEMPLATE}.spec.deletion.nodeVolumeDetachTimeoutSeconds",
                    "int32",
                    v1beta1=f"{_TEMPLATE}.nodeVolumeDetachTimeout",
                ),
                Field(
                    f"{_TEMPLATE}.spec.deletion.nodeDeletionTimeoutSeconds",
                    "int32",
                    v1beta1=f"{_TEMPLATE}.nodeDeletionTimeout",
                ),
                Field(
                    f"{_TEMPLATE}.spec.readinessGates",
                    "list of condition types",
                    v1beta1=f"{_TEMPLATE}.readinessGates",
                ),
                Field(
                    f"{_TEMPLATE}.spec.taints",
                    "list of taints by key and effect",
                    v1beta1=f"{_TEMPLATE}.taints",
                ),
            ),
            words=(CONTROL_PLANE_LABEL, CONTROL_PLANE_NAME_LABEL, CLUSTER_NAME_LABEL),
        ),
        ContractRule(
            id=f"{_NAME}/external",
            title="No Nodes of its own",
            heading="ControlPlane: machines",
            applies_to=_KIND,
            says=(
                "A control plane that is not among the Nodes of its cluster says so; without "
                "it, core neither drains nor removes the Nodes of workers."
            ),
            mandatory_if="instances are not Nodes of the workload cluster",
            fields=(Field("status.externalManagedControlPlane", "boolean"),),
        ),
        ContractRule(
            id=f"{_NAME}/rollout-after",
            title="Rollout after",
            heading="ControlPlane: rolloutAfter",
            applies_to=_KIND,
            says="Once a moment has passed, everything is rolled out although nothing changed.",
            mandatory_if="such rollouts are supported",
            fields=(Field("spec.rollout.after", "time"),),
            generations=("v1beta2",),
        ),
        ContractRule(
            id=f"{_NAME}/initialization",
            title="Initialization",
            heading="ControlPlane: initialization completed",
            applies_to=_KIND,
            says=(
                "The status says when the API server first takes requests, and never takes it back."
            ),
            mandatory=True,
            fields=(
                Field(
                    "status.initialization.controlPlaneInitialized",
                    "boolean",
                    v1beta1="status.initialized",
                ),
                Field("status.ready", "boolean, only in v1beta1", v1beta1="status.ready"),
            ),
        ),
        ContractRule(
            id=f"{_NAME}/in-place-updates",
            title="Updates in place",
            heading="ControlPlane: in-place updates",
            applies_to=_KIND,
            says=(
                "A provider that has extensions update Machines in place asks them first, marks "
                "Machine, infrastructure and bootstrap config, and leaves the update as pending."
            ),
            mandatory_if=f"updates in place are supported, which needs that {_MACHINES}",
            words=(UPDATE_IN_PROGRESS_ANNOTATION, PENDING_HOOKS_ANNOTATION),
            generations=("v1beta2",),
        ),
        conditions(
            _NAME,
            _KIND,
            "Available says that the control plane works, even if degraded or busy; core shows "
            "it on the Cluster, and sums up RollingOut, ScalingUp and ScalingDown. In v1beta1, "
            "Ready is what is shown.",
        ),
        terminal_failures(
            _NAME,
            _KIND,
            "In v1beta1, a control plane that can never recover says so; core then gives the "
            "Cluster up. From v1beta2 on, nobody acts on it.",
        ),
        template(_NAME, _KIND),
        ContractRule(
            id=f"{_NAME}/kubeconfig",
            title="Kubeconfig",
            heading="Cluster kubeconfig management",
            applies_to="kubeconfig secret",
            says=(
                "The secret CLUSTER-kubeconfig beside the Cluster, with type and label, lets core "
                "reach the workload cluster; its client certificate is short-lived and renewed."
            ),
            mandatory=True,
            fields=(Field("data.value", "kubeconfig"),),
            words=(SECRET_TYPE, CLUSTER_NAME_LABEL),
        ),
        ContractRule(
            id=f"{_NAME}/certificates",
            title="Certificates",
            heading="Cluster certificate management",
            applies_to="certificate secrets",
            says=(
                "Certificates are kept beside the Cluster in secrets CLUSTER-ca, -etcd, -proxy "
                "and -sa, with type and label."
            ),
            fields=(Field("data['tls.crt']", "PEM"), Field("data['tls.key']", "PEM")),
            words=(SECRET_TYPE, CLUSTER_NAME_LABEL),
        ),
        ContractRule(
            id=f"{_NAME}/placement",
            title="Placement",
            heading="Machine placement",
            applies_to=_KIND,
            says=(
                "Machines are spread over those of the Cluster's failure domains that are meant "
                "for control planes."
            ),
        ),
        ContractRule(
            id=f"{_NAME}/metadata",
            title="Metadata",
            heading="Metadata propagation",
            applies_to=_KIND,
            says=(
                "Labels and annotations of the machine template reach Machines, and through them "
                "Nodes, without a rollout."
            ),
            fields=(Field(f"{_TEMPLATE}.metadata", "labels and annotations"),),
        ),
        ContractRule(
            id=f"{_NAME}/node-metadata",
            title="Metadata of Nodes",
            heading="Machine",
            applies_to="Machines",
            says=(
                "Core copies a Machine's labels to its Node only where they are of the domains "
                "for it."
            ),
            words=(
                "node-role.kubernetes.io",
                "node-restriction.kubernetes.io",
                "node.cluster.x-k8s.io",
            ),
            document=f"{BOOK}/reference/api/metadata-propagation",
        ),
        ContractRule(
            id=f"{_NAME}/up-to-date",
            title="MinReadySeconds and UpToDate",
            heading="MinReadySeconds and UpToDate propagation",
            applies_to="Machines",
            says=(
                "The control plane keeps minReadySeconds and the condition UpToDate of its "
                "Machines right."
            ),
            mandatory_if=_MACHINES,
        ),
        several_managers(_NAME, "Support for running multiple instances"),
        clusterctl(_NAME),
        pausing(_NAME, _KIND),
    ),
)
