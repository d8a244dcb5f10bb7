"""Bootstraps and cleans machines: everything that runs on them, over any transport."""

from capelin_machine_pool.bootstrap.cloud_config import (
    CloudConfig,
    CloudConfigError,
    File,
    User,
    instance_metadata,
    read_cloud_config,
)
from capelin_machine_pool.bootstrap.executor import (
    MachineBootstrap,
    bootstrap_message,
    clean_message,
    differences_message,
    observe,
    take_baseline,
    update_message,
)
from capelin_machine_pool.bootstrap.installation import (
    NOTHING,
    Archive,
    Archives,
    Installation,
    NoArchiveError,
    is_version,
)
from capelin_machine_pool.bootstrap.masking import mask, secrets_of
from capelin_machine_pool.bootstrap.plan import (
    BootstrapStep,
    CleanStep,
    HostState,
    JobState,
    UpdateStep,
    next_bootstrap_step,
    next_clean_step,
    next_update_step,
    read_host_state,
)
from capelin_machine_pool.bootstrap.transport import (
    CommandResult,
    FailureKind,
    Transport,
    TransportError,
)

__all__ = [
    "NOTHING",
    "Archive",
    "Archives",
    "BootstrapStep",
    "CleanStep",
    "CloudConfig",
    "CloudConfigError",
    "CommandResult",
    "FailureKind",
    "File",
    "HostState",
    "Installation",
    "JobState",
    "MachineBootstrap",
    "NoArchiveError",
    "Transport",
    "TransportError",
    "UpdateStep",
    "User",
    "bootstrap_message",
    "clean_message",
    "differences_message",
    "instance_metadata",
    "is_version",
    "mask",
    "next_bootstrap_step",
    "next_clean_step",
    "next_update_step",
    "observe",
    "read_cloud_config",
    "read_host_state",
    "secrets_of",
    "take_baseline",
    "update_message",
]
