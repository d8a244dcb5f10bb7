"""The reasons of a control plane's conditions, for the code and for the troubleshooting page."""

from capelin.contract import ASLEEP, PAUSED, WAKING
from capelin.provider import Reasons


class Reason(Reasons):
    """Why a condition is as it is, beyond `X` and `NotX` of a condition `X`."""

    WAITING_FOR_OWNER = (
        "WaitingForOwnerCluster",
        "no Cluster names this control plane, or one names another",
        "name it in the `controlPlaneRef` of a Cluster in its namespace",
    )
    INVALID_CONFIGURATION = (
        "InvalidConfiguration",
        "a field has a value that no control plane can run with",
        "change the field that the message names. Running components continue meanwhile",
    )
    CERTIFICATES_MISSING = (
        "CertificatesMissing",
        "the Secret of a CA is missing",
        "restore the Secret from a backup. Capelin creates no new CA for a running control plane",
    )
    CERTIFICATES_NOT_USABLE = (
        "CertificatesNotUsable",
        "the Secret of a CA is invalid",
        "correct the Secret that the message names, or restore it from a backup",
    )
    SECRETS_REMAIN = (
        "SecretsRemain",
        "Secrets of a deleted control plane of the same name are still being deleted",
        "wait. If they remain, remove their owner to keep them, or delete them",
    )
    CLUSTER_HAS_OTHER_ENDPOINT = (
        "ClusterHasOtherEndpoint",
        (
            "the Cluster has the endpoint of its infrastructure, and the control plane another "
            "one. Certificates are valid for both"
        ),
        (
            "make sure that the endpoint of the Cluster leads to the API servers. In the next "
            "cluster, leave out the `spec.controlPlaneEndpoint` of the control plane or that of "
            "the infrastructure"
        ),
    )
    NOT_INITIALIZED = (
        "NotInitialized",
        "its API has never answered yet",
        "wait. If it remains, read the conditions of etcd and the API servers",
    )
    STARTING = "Starting", "it is starting", "wait. If it remains, read the component's log"
    WAITING_FOR_API_SERVER = (
        "WaitingForAPIServer",
        "it needs an API server, and none is ready",
        "read `APIServersAvailable`",
    )
    NO_REPLICAS = "NoReplicas", "`spec.replicas` is 0", "set `spec.replicas` to 1 or more"
    QUORUM_LOST = (
        "QuorumLost",
        "half of the etcd members or more are down",
        (
            "repair the members that the message names. If that is impossible, "
            "[recover](how-to/recover.md) the control plane"
        ),
    )
    ETCD_CLUSTER_DEGRADED = (
        "EtcdClusterDegraded",
        "etcd works with fewer members than desired",
        "read the log of the member that the message names",
    )
    API_SERVERS_DEGRADED = (
        "APIServersDegraded",
        "the API works with fewer API servers than desired",
        "wait. If it remains, read the log of the new API server. The others continue to serve",
    )
    ETCD_MEMBER_LOST = (
        "EtcdMemberLost",
        "a member that lost its data cannot be replaced yet",
        "wait: the provider replaces it while the others have a quorum",
    )
    ETCD_RESIZING = (
        "EtcdResizing",
        "a member of etcd cannot join, leave or lead yet",
        "wait: the provider tries again. A member joins when all others have been ready for 5 s",
    )
    WAITING_FOR_BUDGET = (
        "WaitingForBudget",
        "a change requires a restart of etcd, and the PodDisruptionBudget allows none now",
        "repair the etcd member that is not ready",
    )
    GETTING_PROGRAMS = (
        "GettingPrograms",
        "binaries for this version are being downloaded or built",
        "wait. A build takes minutes",
    )
    VERSION_NOT_AVAILABLE = (
        "VersionNotAvailable",
        "binaries for this version are not available",
        (
            "[revert `spec.version`](../providers/control-plane/README.md#unavailable-versions), "
            "or choose a version that the message or `capelin doctor` lists"
        ),
    )
    ADDRESS_NOT_AVAILABLE = (
        "AddressNotAvailable",
        "no loopback address has this port free",
        (
            "stop the process that listens on the port at all addresses, or set another port in "
            "the Cluster's `spec.clusterNetwork.apiServerPort`"
        ),
    )
    ADDRESS_TAKEN = (
        "AddressTaken",
        "its address belongs to another control plane",
        "recreate the object with another endpoint",
    )
    ENDPOINT_TAKEN = (
        "EndpointTaken",
        "another control plane listens at its endpoint",
        "choose another port",
    )
    DATA_MISSING = (
        "DataMissing",
        "it ran before, and its data is not here",
        (
            "on processes, start the provider on the machine that has the state folder, or move "
            "the folder. On pods, restore the claims and the StatefulSet"
        ),
    )
    AUTHORITY_CHANGED = (
        "AuthorityChanged",
        "the Secret of the CA is not the one that its data was created with",
        "restore the old Secret",
    )
    MANAGED_BY_ANOTHER_PROVIDER = (
        "ManagedByAnotherProvider",
        "another provider on this machine supervises it",
        "stop the other provider with the same state folder, or pause the object there",
    )
    BACKEND_NOT_AVAILABLE = (
        "BackendNotAvailable",
        "the provider does not run control planes on `spec.backend`",
        "recreate the object with another `spec.backend`, or add the backend to `--backends`",
    )
    WAITING_FOR_ADDRESS = (
        "WaitingForAddress",
        "the management cluster has given the API servers' Service no address yet",
        "check the load balancer, or choose another `spec.pods.exposure.type`",
    )
    NAME_TAKEN = (
        "NameTaken",
        "an object of that name in the namespace is not the control plane's",
        "delete that object, or give the control plane another name",
    )
    STOPPING_PODS = (
        "StoppingPods",
        "the deletion continues when its pods have ended",
        "wait. If a pod remains, read its events",
    )
    MOVE_NOT_REQUESTED = (
        "MoveNotRequested",
        "`clusterctl move` waits for the provider, which waits for a request, and then fails",
        "[request the move](how-to/move.md) first, or end the pause that clusterctl has started",
    )
    MOVE_REQUESTED = (
        "MoveRequested",
        "for an hour, a pause of the Cluster stops the control plane, for `clusterctl move`",
        "[run `clusterctl move`](how-to/move.md)",
    )
    MOVE_REFUSED = (
        "MoveRefused",
        "the control plane could not run in another management cluster",
        "change the field or the object that the message names",
    )
    MOVE_POSTPONED = (
        "MovePostponed",
        "another operation has to be complete before a move",
        "wait, and run `clusterctl move` afterwards",
    )
    STOPPING_FOR_MOVE = (
        "StoppingForMove",
        "API servers and their controllers stop before the final backup",
        "wait. The API does not serve until the move is complete",
    )
    TAKING_FINAL_BACKUP = (
        "TakingFinalBackup",
        "the provider writes the final backup, with all writes",
        "wait",
    )
    RELEASING_FOR_MOVE = (
        "ReleasingForMove",
        "the final backup is complete, and the remaining pods and Services are deleted",
        "wait",
    )
    READY_FOR_MOVE = (
        "ReadyForMove",
        "nothing blocks `clusterctl move` any more",
        (
            "wait for clusterctl. If it has failed, run it again, or end the pause to continue in"
            " this management cluster"
        ),
    )
    MOVE_FAILED = (
        "MoveFailed",
        "a step of the move has failed. The API does not serve",
        "read the message. The provider tries again. To continue here, end the pause",
    )
    DISK_FULL = (
        "DiskFull",
        "the disk of the provider's machine is full",
        "free disk space. The control plane recovers by itself",
    )
    STATE_FOLDER_NOT_USABLE = (
        "StateFolderNotUsable",
        "the provider cannot write to its state folder",
        "restore the owner and the mode of the folder. The control plane recovers by itself",
    )
    NOT_APPLIED = (
        "NotApplied",
        "the workload cluster rejects its add-ons or other objects",
        "read the message. It names the object and the error of the workload cluster",
    )
    BACKUPS_NOT_ALLOWED = (
        "BackupsNotAllowed",
        "the provider has no folder for backups, or does not allow the S3 endpoint",
        (
            "ask the provider's administrator for `--backup-folder` or `--backup-endpoints`, or "
            "leave `spec.etcd.backup` out"
        ),
    )
    BACKUP_DESTINATION_NOT_USABLE = (
        "BackupDestinationNotUsable",
        "S3 rejects the credentials, has no such bucket, or a field of the destination is invalid",
        "correct the field, the Secret or the permissions that the message names",
    )
    BACKUP_KEY_NOT_USABLE = (
        "BackupKeyNotUsable",
        "the Secret of `spec.etcd.backup.encryptionKey` is missing or too short",
        "create the Secret with at least 32 random bytes, and store a copy elsewhere",
    )
    BACKUP_FAILED = (
        "BackupFailed",
        "etcd could not be read, or the backup could not be written",
        "read the message. The provider tries again every minute",
    )
    ARCHIVE_FAILED = (
        "ArchiveFailed",
        "the changes of etcd cannot be archived now",
        "correct the cause in the message. The provider tries again every few seconds",
    )
    ARCHIVE_INTERRUPTED = (
        "ArchiveInterrupted",
        "etcd compacted changes before they were archived, for example after a restore",
        "wait. The provider takes a backup, which the archive continues",
    )
    BACKUP_DAMAGED = (
        "BackupDamaged",
        "backups in the destination have no readable manifest or lack a file",
        "delete the files that begin with the names in the message. The other backups are usable",
    )
    BACKUP_FROM_FUTURE = (
        "BackupFromFuture",
        "a backup is dated later than now: the provider's clock was ahead, or is behind",
        (
            "set the clock. Backups continue, and this one does not count. It can be restored. "
            "Delete its files when you do not need it any more"
        ),
    )
    BACKUPS_NOT_DELETED = (
        "BackupsNotDeleted",
        "the last backup is good, and the destination refuses to delete an expired one",
        "allow the deletion, or leave it to the bucket's lifecycle rules and keep more backups",
    )
    ETCD_OUT_OF_SPACE = (
        "EtcdOutOfSpace",
        "etcd reached its quota and rejects writes, or did a moment ago",
        (
            "delete objects, or raise `quota-backend-bytes` in `spec.etcd.extraArgs`. The provider "
            "compacts and defragments etcd, and ends the alarm as soon as a tenth of the quota is "
            "free"
        ),
    )
    ETCD_SPACE_LOW = (
        "EtcdSpaceLow",
        "etcd's data needs more than 90 percent of its quota",
        "delete objects, or raise `quota-backend-bytes` in `spec.etcd.extraArgs`",
    )
    ENCRYPTION_KEYS_MISSING = (
        "EncryptionKeysMissing",
        "the Secret with the keys of encryption at rest is missing, damaged or outdated",
        (
            "[restore the newest Secret](how-to/encryption.md#lost-keys). Running components"
            " continue meanwhile. Capelin creates no new keys, which could not read stored objects"
        ),
    )
    ENCRYPTION_KEY_NOT_USABLE = (
        "EncryptionKeyNotUsable",
        "the Secret of `spec.apiServer.encryption.keysFrom` is missing, or its key is not usable",
        "create the Secret with exactly 32 random bytes. The keys in use stay in use meanwhile",
    )
    KMS_PLUGIN_NOT_LISTED = (
        "KMSPluginNotListed",
        "the provider does not list the KMS plugin that encrypts stored objects",
        (
            "choose a plugin of the message, or ask the provider's administrator for"
            " `--kms-plugins`. Running components continue meanwhile"
        ),
    )
    KMS_PLUGIN_NOT_HEALTHY = (
        "KMSPluginNotHealthy",
        "API servers cannot use their KMS plugin",
        (
            "[start the plugin](how-to/encryption.md#if-a-plugin-fails), and read its log. API"
            " servers try again by themselves"
        ),
    )
    ENCRYPTION_CHANGING = (
        "EncryptionChanging",
        "encryption at rest is being enabled, rotated or disabled",
        "wait. If it remains, read `APIServersAvailable` and `RollingOut`",
    )
    REWRITE_FAILED = (
        "RewriteFailed",
        "stored objects could not be rewritten with the new key",
        (
            "read the message, and check the admission webhooks of the workload cluster. The"
            " provider tries again"
        ),
    )
    RESTORE_REFUSED = (
        "RestoreRefused",
        "the control plane cannot continue from the backup that the annotation names",
        "read the message. Name another backup, or remove the annotation, but not after a move",
    )
    RESTORE_FAILED = (
        "RestoreFailed",
        "the backup could not be read, or etcd refuses it",
        "read the message. The provider tries again every minute, and the control plane continues",
    )
    PREPARING_RESTORE = (
        "PreparingRestore",
        "the provider creates new data from the backup. The control plane continues",
        "wait",
    )
    STOPPING_FOR_RESTORE = (
        "StoppingForRestore",
        "etcd and its clients stop, so that the data of the backup can replace theirs",
        "wait. The API does not serve meanwhile",
    )
    REPLACING_DATA = (
        "ReplacingData",
        "the data of the backup replaces the data of all etcd members",
        "wait. The old data stays in the state folder of the control plane",
    )
    STARTING_RESTORED = (
        "StartingRestored",
        "etcd and its clients start with the data of the backup",
        "wait. If it remains, read the conditions of etcd and the API servers",
    )
    TRUSTING_AUTHORITIES = (
        "TrustingAuthorities",
        "a [rotation](how-to/rotate.md) has created new CAs, and components begin to trust them",
        "wait. If it remains, read `APIServersAvailable` and `RollingOut`",
    )
    ISSUING_CERTIFICATES = (
        "IssuingCertificates",
        "the new CAs sign, and components get new certificates",
        "wait. If it remains, read `APIServersAvailable` and `RollingOut`",
    )
    WAITING_FOR_CLIENTS = (
        "WaitingForClients",
        "clients still need the old CAs or the old service account key",
        "[update the clients](how-to/rotate.md#clients) that the message lists",
    )
    ROTATION_POSTPONED = (
        "RotationPostponed",
        "a rotation waits for the end of another operation, or for a component to be ready",
        "wait. If it remains, read the condition of that operation",
    )
    ROTATION_REFUSED = (
        "RotationRefused",
        "a CA belongs to a user, or an annotation of the rotation is invalid",
        "read the message. [Your own CAs](how-to/rotate.md#your-own-cas) are not rotated",
    )
    ASLEEP = (
        ASLEEP,
        "the control plane [sleeps](how-to/sleep.md): no component runs, and its data stays",
        "wake it with `capelin wake cluster`, or wait for the end of `spec.sleep`",
    )
    FALLING_ASLEEP = (
        "FallingAsleep",
        "the components of a control plane that will sleep stop",
        "wait",
    )
    WAKING = (
        WAKING,
        "the control plane starts after a sleep, and does not serve yet",
        "wait. If it remains, read the conditions of etcd and the API servers",
    )
    ENDED_WHILE_PAUSED = (
        "EndedWhilePaused",
        "components of a paused control plane have ended, for example with their machine",
        "wait: they start again. A pause ends all other repairs, so end it if they do not",
    )
    PAUSED = (
        PAUSED,
        "the control plane is paused, and its components run again, unchecked",
        "end the pause",
    )
    WORKERS_REMAIN = (
        "WaitingForWorkersDeletion",
        "the provider deletes it after its workers",
        "delete the Machines of the cluster, or find out why they remain",
    )
