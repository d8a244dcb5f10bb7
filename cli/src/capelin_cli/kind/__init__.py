"""kind clusters, by the command `kind` and the container engine's command."""

from capelin_cli.kind.commands import KindCommands, NodeContainer, is_archive
from capelin_cli.kind.kind_config import (
    KindConfig,
    KindMount,
    KindNode,
    KindPort,
    archive_digest,
    cluster_config,
    hosts_file,
)

__all__ = [
    "KindCommands",
    "KindConfig",
    "KindMount",
    "KindNode",
    "KindPort",
    "NodeContainer",
    "archive_digest",
    "cluster_config",
    "hosts_file",
    "is_archive",
]
