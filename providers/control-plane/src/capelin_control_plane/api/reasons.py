"""The reasons of a control plane's conditions. `reasons.toml` has their texts."""

import tomllib
from importlib.resources import files
from typing import Final, Self

from capelin.contract import ASLEEP, PAUSED, WAKING
from capelin.provider import Reasons

_TEXTS: Final = tomllib.loads(
    files("capelin_control_plane.api").joinpath("reasons.toml").read_text(encoding="utf-8")
)


class Reason(Reasons):
    """Why a condition is as it is, beyond `X` and `NotX` of a condition `X`."""

    WAITING_FOR_OWNER = "WaitingForOwnerCluster"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    CERTIFICATES_MISSING = "CertificatesMissing"
    CERTIFICATES_NOT_USABLE = "CertificatesNotUsable"
    SECRETS_REMAIN = "SecretsRemain"
    CLUSTER_HAS_OTHER_ENDPOINT = "ClusterHasOtherEndpoint"
    NOT_INITIALIZED = "NotInitialized"
    STARTING = "Starting"
    WAITING_FOR_API_SERVER = "WaitingForAPIServer"
    NO_REPLICAS = "NoReplicas"
    QUORUM_LOST = "QuorumLost"
    ETCD_CLUSTER_DEGRADED = "EtcdClusterDegraded"
    API_SERVERS_DEGRADED = "APIServersDegraded"
    ETCD_MEMBER_LOST = "EtcdMemberLost"
    ETCD_RESIZING = "EtcdResizing"
    WAITING_FOR_BUDGET = "WaitingForBudget"
    GETTING_PROGRAMS = "GettingPrograms"
    VERSION_NOT_AVAILABLE = "VersionNotAvailable"
    ADDRESS_NOT_AVAILABLE = "AddressNotAvailable"
    ADDRESS_TAKEN = "AddressTaken"
    ENDPOINT_TAKEN = "EndpointTaken"
    DATA_MISSING = "DataMissing"
    AUTHORITY_CHANGED = "AuthorityChanged"
    MANAGED_BY_ANOTHER_PROVIDER = "ManagedByAnotherProvider"
    BACKEND_NOT_AVAILABLE = "BackendNotAvailable"
    WAITING_FOR_ADDRESS = "WaitingForAddress"
    NAME_TAKEN = "NameTaken"
    STOPPING_PODS = "StoppingPods"
    MOVE_NOT_REQUESTED = "MoveNotRequested"
    MOVE_REQUESTED = "MoveRequested"
    MOVE_REFUSED = "MoveRefused"
    MOVE_POSTPONED = "MovePostponed"
    STOPPING_FOR_MOVE = "StoppingForMove"
    TAKING_FINAL_BACKUP = "TakingFinalBackup"
    RELEASING_FOR_MOVE = "ReleasingForMove"
    READY_FOR_MOVE = "ReadyForMove"
    MOVE_FAILED = "MoveFailed"
    DISK_FULL = "DiskFull"
    STATE_FOLDER_NOT_USABLE = "StateFolderNotUsable"
    NOT_APPLIED = "NotApplied"
    BACKUPS_NOT_ALLOWED = "BackupsNotAllowed"
    BACKUP_DESTINATION_NOT_USABLE = "BackupDestinationNotUsable"
    BACKUP_KEY_NOT_USABLE = "BackupKeyNotUsable"
    BACKUP_FAILED = "BackupFailed"
    ARCHIVE_FAILED = "ArchiveFailed"
    ARCHIVE_INTERRUPTED = "ArchiveInterrupted"
    BACKUP_DAMAGED = "BackupDamaged"
    BACKUP_FROM_FUTURE = "BackupFromFuture"
    BACKUPS_NOT_DELETED = "BackupsNotDeleted"
    ETCD_OUT_OF_SPACE = "EtcdOutOfSpace"
    ETCD_SPACE_LOW = "EtcdSpaceLow"
    ENCRYPTION_KEYS_MISSING = "EncryptionKeysMissing"
    ENCRYPTION_KEY_NOT_USABLE = "EncryptionKeyNotUsable"
    KMS_PLUGIN_NOT_LISTED = "KMSPluginNotListed"
    KMS_PLUGIN_NOT_HEALTHY = "KMSPluginNotHealthy"
    ENCRYPTION_CHANGING = "EncryptionChanging"
    REWRITE_FAILED = "RewriteFailed"
    RESTORE_REFUSED = "RestoreRefused"
    RESTORE_FAILED = "RestoreFailed"
    PREPARING_RESTORE = "PreparingRestore"
    STOPPING_FOR_RESTORE = "StoppingForRestore"
    REPLACING_DATA = "ReplacingData"
    STARTING_RESTORED = "StartingRestored"
    TRUSTING_AUTHORITIES = "TrustingAuthorities"
    ISSUING_CERTIFICATES = "IssuingCertificates"
    WAITING_FOR_CLIENTS = "WaitingForClients"
    ROTATION_POSTPONED = "RotationPostponed"
    ROTATION_REFUSED = "RotationRefused"
    ASLEEP = ASLEEP
    FALLING_ASLEEP = "FallingAsleep"
    WAKING = WAKING
    ENDED_WHILE_PAUSED = "EndedWhilePaused"
    PAUSED = PAUSED
    WORKERS_REMAIN = "WaitingForWorkersDeletion"

    def __new__(cls, value: str) -> Self:
        """A reason of the table."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.meaning = _TEXTS[value]["meaning"]
        reason.next_step = _TEXTS[value]["next_step"]
        return reason
