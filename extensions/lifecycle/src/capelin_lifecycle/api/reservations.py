"""What the quotas of policies have reserved."""

from typing import Annotated

from annotated_types import MaxLen, MinLen
from capelin.api import BaseObject, Definition, kind

from capelin_lifecycle.api.names import GROUP, VERSION

MOST_RESERVATIONS = 1000


@kind(group=GROUP, version=VERSION, definition=Definition(categories=("cluster-api",)))
class LifecycleReservation(BaseObject):
    """Clusters that the quota of a policy has admitted. The extension writes it, and nobody else.

    It is an object of its own, and small: a hook writes it before it admits a Cluster.
    """

    clusters: Annotated[list[Annotated[str, MinLen(1), MaxLen(64)]], MaxLen(MOST_RESERVATIONS)] = []
    """Uids of these Clusters."""
