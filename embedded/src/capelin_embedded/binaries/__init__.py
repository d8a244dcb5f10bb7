"""Provides the real Kubernetes binaries: from a folder, the cache, an image, or `go build`."""

from capelin_embedded.binaries.binaries import Binaries
from capelin_embedded.binaries.cache import Cache, Entry
from capelin_embedded.binaries.catalog import (
    CLUSTER_API,
    COMPONENTS,
    DEFAULT_KUBERNETES,
    KNOWN_KUBERNETES,
    KUBERNETES,
    TESTED_KUBERNETES,
    Component,
    ComponentVersion,
    Platform,
    Project,
    check_kubernetes_version,
    parse_component,
)
from capelin_embedded.binaries.download import open_web
from capelin_embedded.binaries.errors import (
    BinariesError,
    NotObtainableError,
    UnknownComponentError,
    WantedByAnotherError,
)
from capelin_embedded.binaries.go import (
    Go,
    build_arguments,
    find_go,
    installed_go,
    is_new_enough,
    needed_go,
    newest_needed_go,
)
from capelin_embedded.binaries.progress import (
    LiveProgress,
    PlainProgress,
    Progress,
    ProgressEvent,
    default_progress,
)
from capelin_embedded.binaries.sources import Binary

__all__ = [
    "CLUSTER_API",
    "COMPONENTS",
    "DEFAULT_KUBERNETES",
    "KNOWN_KUBERNETES",
    "KUBERNETES",
    "TESTED_KUBERNETES",
    "Binaries",
    "BinariesError",
    "Binary",
    "Cache",
    "Component",
    "ComponentVersion",
    "Entry",
    "Go",
    "LiveProgress",
    "NotObtainableError",
    "PlainProgress",
    "Platform",
    "Progress",
    "ProgressEvent",
    "Project",
    "UnknownComponentError",
    "WantedByAnotherError",
    "build_arguments",
    "check_kubernetes_version",
    "default_progress",
    "find_go",
    "installed_go",
    "is_new_enough",
    "needed_go",
    "newest_needed_go",
    "open_web",
    "parse_component",
]
