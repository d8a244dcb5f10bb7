"""kind clusters, by the command `kind` and the container engine's command."""

from capelin_infra.kind.clusters import KindCommands, NodeContainer, is_archive
from capelin_infra.kind.config import cluster_config, hosts_file
from capelin_infra.kind.images import archive_digest

__all__ = [
    "KindCommands",
    "NodeContainer",
    "archive_digest",
    "cluster_config",
    "hosts_file",
    "is_archive",
]
