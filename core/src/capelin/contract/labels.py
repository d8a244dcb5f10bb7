"""The words that Cluster API and its providers share: labels, annotations, finalizers, and so on.

The rules in `capelin.conformance.contracts` name those that they are about. All are explained at
https://cluster-api.sigs.k8s.io/reference/api/labels-and-annotations.
"""

from typing import Final

# Groups

CLUSTER_GROUP: Final = "cluster.x-k8s.io"
CONTROL_PLANE_GROUP: Final = "controlplane.cluster.x-k8s.io"
INFRASTRUCTURE_GROUP: Final = "infrastructure.cluster.x-k8s.io"
BOOTSTRAP_GROUP: Final = "bootstrap.cluster.x-k8s.io"

# Labels

CLUSTER_NAME_LABEL: Final = "cluster.x-k8s.io/cluster-name"
"""The Cluster that an object is part of. Core's caches do not see secrets without it."""
CONTROL_PLANE_LABEL: Final = "cluster.x-k8s.io/control-plane"
"""Marks a Machine of a control plane; its value is empty."""
CONTROL_PLANE_NAME_LABEL: Final = "cluster.x-k8s.io/control-plane-name"
"""The control plane that a Machine is part of."""
SET_NAME_LABEL: Final = "cluster.x-k8s.io/set-name"
"""The MachineSet that a Machine is part of."""
DEPLOYMENT_NAME_LABEL: Final = "cluster.x-k8s.io/deployment-name"
"""The MachineDeployment that a Machine is part of."""
POOL_NAME_LABEL: Final = "cluster.x-k8s.io/pool-name"
"""The MachinePool that a Machine, and the infrastructure's machine, are part of."""
PROVIDER_LABEL: Final = "cluster.x-k8s.io/provider"
"""The provider that an installed object is part of."""
WATCH_LABEL: Final = "cluster.x-k8s.io/watch-filter"
"""Which of several managers of one provider looks after an object."""
INTERRUPTIBLE_LABEL: Final = "cluster.x-k8s.io/interruptible"
"""Marks the Node of a machine that its infrastructure may take away."""
AGGREGATE_TO_MANAGER_LABEL: Final = "cluster.x-k8s.io/aggregate-to-manager"
"""Marks a ClusterRole that core's manager is to have as well; its value is `true`."""
TOPOLOGY_OWNED_LABEL: Final = "topology.cluster.x-k8s.io/owned"
"""Marks what the topology controller keeps as a ClusterClass says."""
TOPOLOGY_DEPLOYMENT_NAME_LABEL: Final = "topology.cluster.x-k8s.io/deployment-name"
"""The MachineDeployment's name in the topology."""
TOPOLOGY_POOL_NAME_LABEL: Final = "topology.cluster.x-k8s.io/pool-name"
"""The MachinePool's name in the topology."""
CLUSTERCTL_LABEL: Final = "clusterctl.cluster.x-k8s.io"
"""Marks what clusterctl installed; of CRDs, those whose objects it moves and describes."""
MOVE_LABEL: Final = "clusterctl.cluster.x-k8s.io/move"
"""Has clusterctl move an object that belongs to no Cluster."""
MOVE_HIERARCHY_LABEL: Final = "clusterctl.cluster.x-k8s.io/move-hierarchy"
"""Has clusterctl move such an object together with everything that it owns."""

# Annotations

PAUSED_ANNOTATION: Final = "cluster.x-k8s.io/paused"
"""Has controllers leave an object alone, whatever its value."""
MANAGED_BY_ANNOTATION: Final = "cluster.x-k8s.io/managed-by"
"""Says that somebody else keeps an infrastructure cluster: providers leave it alone."""
REPLICAS_MANAGED_BY_ANNOTATION: Final = "cluster.x-k8s.io/replicas-managed-by"
"""Says that somebody else decides how many replicas a pool has, unless it is `false`."""
DELETE_MACHINE_ANNOTATION: Final = "cluster.x-k8s.io/delete-machine"
"""Has a Machine go first when there are to be fewer."""
DISABLE_MACHINE_CREATE_ANNOTATION: Final = "cluster.x-k8s.io/disable-machine-create"
"""Has a MachineSet make no more Machines."""
REMEDIATE_MACHINE_ANNOTATION: Final = "cluster.x-k8s.io/remediate-machine"
"""Has a Machine replaced as if it were unhealthy."""
SKIP_REMEDIATION_ANNOTATION: Final = "cluster.x-k8s.io/skip-remediation"
"""Keeps an unhealthy Machine from being replaced."""
CLONED_FROM_NAME_ANNOTATION: Final = "cluster.x-k8s.io/cloned-from-name"
"""The template that an object was made from."""
CLONED_FROM_GROUP_KIND_ANNOTATION: Final = "cluster.x-k8s.io/cloned-from-groupkind"
"""The kind of the template that an object was made from, as `Kind.group`."""
AUTOSCALER_MIN_SIZE_ANNOTATION: Final = (
    "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
)
"""The fewest replicas that the cluster autoscaler may ask for."""
AUTOSCALER_MAX_SIZE_ANNOTATION: Final = (
    "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
)
"""The most replicas that the cluster autoscaler may ask for."""
EXCLUDE_NODE_DRAINING_ANNOTATION: Final = "machine.cluster.x-k8s.io/exclude-node-draining"
"""Has a Machine removed without draining its Node."""
EXCLUDE_VOLUME_DETACH_ANNOTATION: Final = (
    "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach"
)
"""Has a Machine removed without waiting for its volumes."""
CERTIFICATES_EXPIRY_ANNOTATION: Final = "machine.cluster.x-k8s.io/certificates-expiry"
"""When the certificates of a control plane Machine end."""
PRE_DRAIN_HOOK_PREFIX: Final = "pre-drain.delete.hook.machine.cluster.x-k8s.io"
"""Annotations under it hold up a Machine's removal before its Node is drained."""
PRE_TERMINATE_HOOK_PREFIX: Final = "pre-terminate.delete.hook.machine.cluster.x-k8s.io"
"""Annotations under it hold up a Machine's removal before its infrastructure goes."""
SKIP_PREFLIGHT_CHECKS_ANNOTATION: Final = "machineset.cluster.x-k8s.io/skip-preflight-checks"
"""Which checks a MachineSet leaves out before it makes a Machine."""
TOPOLOGY_DRY_RUN_ANNOTATION: Final = "topology.cluster.x-k8s.io/dry-run"
"""Marks the topology controller's dry runs: what is immutable may change in them."""
TOPOLOGY_DEFER_UPGRADE_ANNOTATION: Final = "topology.cluster.x-k8s.io/defer-upgrade"
"""Keeps workers of a topology at their version while the rest is upgraded."""
TOPOLOGY_HOLD_UPGRADE_SEQUENCE_ANNOTATION: Final = "topology.cluster.x-k8s.io/hold-upgrade-sequence"
"""Keeps these workers, and those after them in the topology, at their version."""
TOPOLOGY_UPGRADE_CONCURRENCY_ANNOTATION: Final = "topology.cluster.x-k8s.io/upgrade-concurrency"
"""How many of a topology's workers are upgraded at a time."""
TOPOLOGY_UPGRADE_STEP_ANNOTATION: Final = "topology.internal.cluster.x-k8s.io/upgrade-step"
"""The version that a chained upgrade has reached; core's own."""
BEFORE_UPGRADE_HOOK_PREFIX: Final = "before-upgrade.hook.cluster.cluster.x-k8s.io"
"""Annotations under it hold up a Cluster's upgrade."""
INJECT_CA_FROM_SECRET_ANNOTATION: Final = "runtime.cluster.x-k8s.io/inject-ca-from-secret"  # noqa: S105 - a name
"""The secret whose `ca.crt` core puts into an ExtensionConfig."""
PENDING_HOOKS_ANNOTATION: Final = "runtime.cluster.x-k8s.io/pending-hooks"
"""Which hooks are still to be called."""
OK_TO_DELETE_ANNOTATION: Final = "runtime.cluster.x-k8s.io/ok-to-delete"
"""Says that `BeforeClusterDelete` no longer holds up a Cluster's removal."""
UPDATE_IN_PROGRESS_ANNOTATION: Final = (
    "in-place-updates.internal.cluster.x-k8s.io/update-in-progress"
)
"""Marks what is being updated in place."""
BLOCK_MOVE_ANNOTATION: Final = "clusterctl.cluster.x-k8s.io/block-move"
"""Has `clusterctl move` wait before it makes anything on the other side."""
DELETE_FOR_MOVE_ANNOTATION: Final = "clusterctl.cluster.x-k8s.io/delete-for-move"
"""Marks what is deleted because it was moved: nothing behind it may be removed."""
SKIP_CRD_NAME_CHECK_ANNOTATION: Final = "clusterctl.cluster.x-k8s.io/skip-crd-name-preflight-check"
"""Lets clusterctl install a CRD that core never looks for under another name."""

# Annotations that core puts on Nodes

NODE_CLUSTER_NAME_ANNOTATION: Final = "cluster.x-k8s.io/cluster-name"
"""The Cluster that a Node is part of."""
NODE_CLUSTER_NAMESPACE_ANNOTATION: Final = "cluster.x-k8s.io/cluster-namespace"
"""The namespace of that Cluster."""
NODE_MACHINE_ANNOTATION: Final = "cluster.x-k8s.io/machine"
"""The Machine whose Node it is."""
NODE_OWNER_KIND_ANNOTATION: Final = "cluster.x-k8s.io/owner-kind"
"""The kind of what controls that Machine, or of the MachinePool."""
NODE_OWNER_NAME_ANNOTATION: Final = "cluster.x-k8s.io/owner-name"
"""The name of what controls that Machine, or of the MachinePool."""
NODE_LABELS_FROM_MACHINE_ANNOTATION: Final = "cluster.x-k8s.io/labels-from-machine"
"""Which labels a Node has from its Machine."""
NODE_ANNOTATIONS_FROM_MACHINE_ANNOTATION: Final = "cluster.x-k8s.io/annotations-from-machine"
"""Which annotations a Node has from its Machine."""
NODE_TAINTS_FROM_MACHINE_ANNOTATION: Final = "cluster.x-k8s.io/taints-from-machine"
"""Which taints a Node has from its Machine."""

# Domains of labels and annotations that travel from a Machine to its Node

NODE_ROLE_LABEL_DOMAIN: Final = "node-role.kubernetes.io"
NODE_RESTRICTION_LABEL_DOMAIN: Final = "node-restriction.kubernetes.io"
MANAGED_NODE_DOMAIN: Final = "node.cluster.x-k8s.io"

# Finalizers

CLUSTER_FINALIZER: Final = "cluster.cluster.x-k8s.io"
MACHINE_FINALIZER: Final = "machine.cluster.x-k8s.io"
MACHINE_POOL_FINALIZER: Final = "machinepool.cluster.x-k8s.io"

# Secrets and Nodes

SECRET_TYPE: Final = "cluster.x-k8s.io/secret"  # noqa: S105 - a type
"""The type of the secrets that Cluster API's providers write."""
UNINITIALIZED_TAINT: Final = "node.cluster.x-k8s.io/uninitialized"
"""Keeps pods off a Node, with the effect NoSchedule, until core has put its labels on it."""
