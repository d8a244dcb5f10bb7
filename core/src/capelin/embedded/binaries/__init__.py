"""Getting the real Kubernetes programs: from a folder, the cache, an image, or `go build`."""

from capelin.embedded.binaries.binaries import Binaries, Binary
from capelin.embedded.binaries.cache import Cache, Entry
from capelin.embedded.binaries.catalogue import (
    COMPONENTS,
    KNOWN_KUBERNETES,
    check_kubernetes_version,
)
from capelin.embedded.binaries.errors import BinariesError, NotObtainableError, UnknownProgramError
from capelin.embedded.binaries.live import LiveProgress, progress_here
from capelin.embedded.binaries.progress import PlainProgress, Progress

__all__ = [
    "COMPONENTS",
    "KNOWN_KUBERNETES",
    "Binaries",
    "BinariesError",
    "Binary",
    "Cache",
    "Entry",
    "LiveProgress",
    "NotObtainableError",
    "PlainProgress",
    "Progress",
    "UnknownProgramError",
    "check_kubernetes_version",
    "progress_here",
]
