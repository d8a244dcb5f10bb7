"""The reasons of pools' and machines' conditions, for the code and for the troubleshooting page."""

from capelin.contract import (
    WAITING_FOR_BOOTSTRAP_DATA,
    WAITING_FOR_CLUSTER_INFRASTRUCTURE,
    WAITING_FOR_CONTROL_PLANE,
)
from capelin.provider import Reasons


class Reason(Reasons):
    """Why a condition is as it is, beyond `X` and `NotX` of a condition `X`."""

    WAITING_FOR_ENDPOINT = (
        "WaitingForControlPlaneEndpoint",
        "the Cluster has no control plane endpoint yet",
        "wait. If the control plane provider never sets one, set `spec.controlPlaneEndpoint`",
    )
    WAITING_FOR_CLUSTER_INFRASTRUCTURE = (
        WAITING_FOR_CLUSTER_INFRASTRUCTURE,
        "the Cluster's infrastructure is not provisioned yet",
        "wait, or read the conditions of the CapelinCluster",
    )
    WAITING_FOR_CONTROL_PLANE = (
        WAITING_FOR_CONTROL_PLANE,
        "the Cluster's control plane is not initialized yet",
        "wait, or read the conditions of the control plane",
    )
    WAITING_FOR_VERSION = (
        "WaitingForVersion",
        "its MachinePool or Machine names no version",
        "set `spec.template.spec.version` of its MachinePool or MachineDeployment",
    )
    WAITING_FOR_BOOTSTRAP_DATA = (
        WAITING_FOR_BOOTSTRAP_DATA,
        "the bootstrap provider has no data for the machine yet",
        (
            "read the KubeadmConfig. In an environment, its controller is the process "
            "`bootstrap-kubeadm`"
        ),
    )
    WAITING_FOR_BOOTSTRAP_CONFIG = (
        "WaitingForBootstrapConfig",
        "the bootstrap config does not exist: no machine is created or replaced",
        "create it again, or name another one in `spec.template.spec.bootstrap.configRef`",
    )
    BOOTSTRAP_CONFIG_FORBIDDEN = (
        "BootstrapConfigForbidden",
        "the provider may not read the bootstrap config: no machine is created or replaced",
        "[bind a ClusterRole](../providers/machine-pool/README.md#conditions) that allows it",
    )
    STARTING = "Starting", "the machine's Node does not exist yet", "wait"
    NODE_DELETED = (
        "NodeDeleted",
        "the machine had a Node, which was deleted",
        "wait: a pool replaces the machine. Without a pool, delete its Machine",
    )
    INVALID_CONFIGURATION = (
        "InvalidConfiguration",
        "the workload cluster rejects the Node, for instance because of an invalid label",
        "change the labels, taints or capacities that the message names",
    )
    NODE_NAME_TAKEN = (
        "NodeNameTaken",
        "a Node of that name has another provider ID. The provider neither adopts nor deletes it",
        "delete the other Node if its machine no longer exists",
    )
