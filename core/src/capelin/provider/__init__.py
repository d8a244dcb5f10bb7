"""What Cluster API providers are built on."""

from capelin.provider.blocked import Blocked
from capelin.provider.installation import ENTRY_POINTS, Provider

__all__ = ["ENTRY_POINTS", "Blocked", "Provider"]
