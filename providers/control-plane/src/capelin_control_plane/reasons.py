"""The reasons of a control plane's conditions. The README lists them with their meanings."""

from capelin.provider import Reasons


class Reason(Reasons):
    """Why a condition is as it is, beyond `X` and `NotX` of a condition `X`."""

    WAITING_FOR_OWNER = (
        "WaitingForOwnerCluster",
        "no Cluster names this control plane, or one names another",
    )
    INVALID_CONFIGURATION = (
        "InvalidConfiguration",
        "a field has a value that no control plane can run with; the message names it",
    )
    CERTIFICATES_MISSING = "CertificatesMissing", "a secret of the authorities is missing"
    CERTIFICATES_NOT_USABLE = "CertificatesNotUsable", "a secret of the authorities cannot be used"
    NOT_INITIALIZED = "NotInitialized", "its API has never answered yet"
    STARTING = "Starting", "it is starting"
    WAITING_FOR_API_SERVER = "WaitingForAPIServer", "it needs an API server, and none is ready"
    NO_REPLICAS = "NoReplicas", "`spec.replicas` is 0"
    QUORUM_LOST = "QuorumLost", "half of the etcd members or more are down"
    ETCD_CLUSTER_DEGRADED = "EtcdClusterDegraded", "etcd works with fewer members than desired"
    API_SERVERS_DEGRADED = "APIServersDegraded", "the API works with fewer API servers than desired"
    ETCD_MEMBER_LOST = (
        "EtcdMemberLost",
        "a member that lost its data cannot be replaced yet",
    )
    WAITING_FOR_BUDGET = (
        "WaitingForBudget",
        "etcd is to be restarted with a change, and its PodDisruptionBudget lets no member go now",
    )
    GETTING_PROGRAMS = "GettingPrograms", "binaries for this version are being downloaded"
    VERSION_NOT_AVAILABLE = "VersionNotAvailable", "binaries for this version are not available"
    ADDRESS_NOT_AVAILABLE = "AddressNotAvailable", "no loopback address is free"
    ADDRESS_TAKEN = "AddressTaken", "its address belongs to another control plane"
    ENDPOINT_TAKEN = "EndpointTaken", "another control plane listens at its endpoint"
    DATA_MISSING = "DataMissing", "it ran before, and its data is not here"
    AUTHORITY_CHANGED = "AuthorityChanged", "its data is from another authority"
    MANAGED_BY_ANOTHER_PROVIDER = (
        "ManagedByAnotherProvider",
        "another provider on this machine supervises it",
    )
    BACKEND_NOT_AVAILABLE = (
        "BackendNotAvailable",
        "the provider does not run control planes on `spec.backend`",
    )
    WAITING_FOR_ADDRESS = (
        "WaitingForAddress",
        "the management cluster has given the API servers' Service no address yet",
    )
    NAME_TAKEN = (
        "NameTaken",
        "an object of that name in the namespace is not the control plane's",
    )
    STOPPING_PODS = "StoppingPods", "it is deleted when its pods have ended"
    PODS_STAY = "PodsStay", "`clusterctl move` would leave its pods and volumes behind"
    DISK_FULL = "DiskFull", "the disk of the provider's machine is full"
    STATE_FOLDER_NOT_USABLE = (
        "StateFolderNotUsable",
        "the provider cannot write to its state folder",
    )
    NOT_APPLIED = "NotApplied", "the workload cluster refuses its add-ons and other objects"
    WORKERS_REMAIN = "WaitingForWorkersDeletion", "it is deleted after its workers"
