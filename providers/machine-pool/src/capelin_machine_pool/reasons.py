"""The reasons of conditions of pools and machines. The README lists them with their meanings."""

from capelin.contract import (
    WAITING_FOR_BOOTSTRAP_DATA,
    WAITING_FOR_CLUSTER_INFRASTRUCTURE,
    WAITING_FOR_CONTROL_PLANE,
)
from capelin.provider import WAITING_FOR_OWNER, Reasons


class Reason(Reasons):
    """Why a condition is as it is, beyond `X` and `NotX` of a condition `X`."""

    WAITING_FOR_OWNER = WAITING_FOR_OWNER, "no Cluster owns it yet"
    WAITING_FOR_ENDPOINT = (
        "WaitingForControlPlaneEndpoint",
        "the Cluster has no control plane endpoint yet",
    )
    WAITING_FOR_CLUSTER_INFRASTRUCTURE = (
        WAITING_FOR_CLUSTER_INFRASTRUCTURE,
        "the Cluster's infrastructure is not provisioned yet",
    )
    WAITING_FOR_CONTROL_PLANE = (
        WAITING_FOR_CONTROL_PLANE,
        "the Cluster's control plane is not initialized yet",
    )
    WAITING_FOR_VERSION = "WaitingForVersion", "its MachinePool or Machine names no version"
    WAITING_FOR_BOOTSTRAP_DATA = (
        WAITING_FOR_BOOTSTRAP_DATA,
        "the bootstrap provider has no data for the machine yet",
    )
    WAITING_FOR_BOOTSTRAP_CONFIG = (
        "WaitingForBootstrapConfig",
        "the bootstrap config does not exist: no machine is created or replaced",
    )
    BOOTSTRAP_CONFIG_FORBIDDEN = (
        "BootstrapConfigForbidden",
        "the provider may not read the bootstrap config: no machine is created or replaced",
    )
    STARTING = "Starting", "the machine's Node does not exist yet"
    NODE_DELETED = "NodeDeleted", "the machine had a Node, which was deleted"
    INVALID_CONFIGURATION = (
        "InvalidConfiguration",
        "the workload cluster rejects the Node, for instance because of an invalid label",
    )
    NODE_NAME_TAKEN = (
        "NodeNameTaken",
        "a Node of that name has another provider ID; it is neither adopted nor deleted",
    )
