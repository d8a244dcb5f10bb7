"""Control planes as pods of the management cluster."""

from capelin_control_plane.backends.pods.backend import PodsBackend
from capelin_control_plane.backends.pods.names import (
    MANAGED_BY,
    MANAGED_BY_LABEL,
    Names,
    owner_of,
)

__all__ = ["MANAGED_BY", "MANAGED_BY_LABEL", "Names", "PodsBackend", "owner_of"]
