"""The reasons of pools' and machines' conditions, for the code and for the troubleshooting page."""

from capelin.contract import (
    ASLEEP,
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
    ASLEEP = (
        ASLEEP,
        "the control plane of the Cluster [sleeps](how-to/sleep.md): nothing is created or deleted",
        "wake it with `capelin wake cluster`, or wait for the end of its schedule",
    )
    WAITING_FOR_NODES = (
        "WaitingForNodes",
        "the control plane has woken, and Cluster API has not read all Nodes again",
        "wait. After five minutes, MachineHealthChecks act again in any case",
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
    NO_FREE_HOST = (
        "NoFreeHost",
        "no CapelinHost that fits the machine is Free",
        "wait for one, register more with `capelin hosts import`, or read `capelin hosts list`",
    )
    WAITING_FOR_HOST = (
        "WaitingForHost",
        "the provider has not finished its work on the machine's host",
        "wait, or read the conditions of the CapelinHost",
    )
    NOT_CHECKED = "NotChecked", "the provider has not reached the host yet", "wait"
    HOST_UNREACHABLE = (
        "HostUnreachable",
        "the SSH server of the host does not answer, or the connection ended",
        "check the host, its address and the network. The provider tries again by itself",
    )
    HOST_COMMAND_FAILED = (
        "HostCommandFailed",
        "the host answers, but a command of the provider fails there, for example on a full disk",
        "correct what the message names. The provider tries again by itself",
    )
    HOST_KEY_MISMATCH = (
        "HostKeyMismatch",
        "the host shows another key than the configured ones",
        (
            "if the host was installed again, correct `spec.hostKeys`. Otherwise find out which "
            "machine answers at the address"
        ),
    )
    LOGIN_REJECTED = (
        "LoginRejected",
        "the host rejects the user with this key",
        "add the public key to the `authorized_keys` of the user, or correct the Secret",
    )
    INVALID_CREDENTIALS = (
        "InvalidCredentials",
        "the Secret with the private key, or a key of the host, is missing or unreadable",
        "correct the Secret that `spec.credentials` names, or the keys in the spec",
    )
    MAINTENANCE = (
        "Maintenance",
        "`spec.maintenance` of the host is true, so no machine may claim it",
        "set it to false after the maintenance",
    )
    HOST_UNFIT = (
        "HostUnfit",
        "the host lacks something that a node needs",
        "see `capelin hosts check`",
    )
    HOST_NOT_CLEAN = (
        "HostNotClean",
        "the host has remains, or differs from its first day. No machine gets it",
        (
            "remove the remains. If the host is Broken, set the annotation "
            "`capelin.cluster.x-k8s.io/clean-again` on the CapelinHost. If the difference "
            "is yours, [accept it](how-to/hosts.md#repair-hosts)"
        ),
    )
    HOST_CHANGED = (
        "HostChanged",
        "the host has lost the marker of its machine, for example because it was installed again",
        "delete the Machine: its replacement gets a clean host",
    )
    CONTAINERS_NOT_ALLOWED = (
        "ContainersNotAllowed",
        "the provider does not run containers on its machine, or not this image",
        "choose another backend or image, or have an administrator set `--container-images`",
    )
    ENGINE_UNAVAILABLE = (
        "ContainerEngineUnavailable",
        "the container engine of the provider's machine does not answer, or rejects the container",
        "start Docker or Podman, or correct the setting in the message. The provider tries again",
    )
    CONTAINER_ENDED = (
        "ContainerEnded",
        "the container of the machine ended",
        "read `docker logs CONTAINER`. Delete the Machine, or use a MachineHealthCheck that does",
    )
    BOOTSTRAPPING = "Bootstrapping", "the machine executes its bootstrap data", "wait"
    BOOTSTRAP_FAILED = (
        "BootstrapFailed",
        "the bootstrap failed, or was interrupted. It is not repeated",
        "read the message and delete the Machine, or use a MachineHealthCheck that does",
    )
    INVALID_BOOTSTRAP_DATA = (
        "InvalidBootstrapData",
        "the bootstrap data are missing, or contain something that is not supported",
        "change the bootstrap config, and delete the Machine",
    )
    UPDATING = (
        "Updating",
        (
            "the machine is updated in place. While pods leave its Node, the message names those "
            "that remain"
        ),
        "wait. If a PodDisruptionBudget never allows an eviction, change it or add replicas",
    )
    UPDATE_FAILED = (
        "UpdateFailed",
        (
            "the update in place failed, or was interrupted. It is not repeated, and the pool "
            "updates no other machine"
        ),
        "read the message and delete the Machine: its replacement has the new version",
    )
    ARCHIVE_MISSING = (
        "ArchiveMissing",
        "the provider has no archive with the programs of this Kubernetes version",
        "add it to the [folder of `--host-bundles`](how-to/hosts.md#install-kubernetes-on-hosts)",
    )
    CLEANING = "Cleaning", "the bootstrap of the host is being undone", "wait"
    POWER_FAILED = (
        "PowerFailed",
        "the host could not be power cycled",
        (
            "correct `spec.power` or the problem in the message, and run "
            "`capelin hosts power-cycle`, or switch the host off and on yourself"
        ),
    )
    MACHINE_MISSING = (
        "MachineMissing",
        "the machine of the host no longer exists, but did not release the host",
        (
            "if no other management cluster uses the host, set the annotation that the message "
            "names on the CapelinHost"
        ),
    )
