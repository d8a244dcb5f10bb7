"""What machines are made of: one module a backend, behind one protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from capelin.client import Client
from capelin.controller import ObjectKey

from capelin_machine_pool.api import Address
from capelin_machine_pool.desired import WantedMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine as it is now."""

    running: bool
    """Whether it has become a node once; then core may look for that."""
    lost: bool = False
    """Whether it was there and is gone."""
    message: str = ""
    """What it waits for, or what is wrong with it."""
    addresses: tuple[Address, ...] = ()
    look_again_at: datetime | None = None
    """When something about it changes by itself."""


class Backend(Protocol):
    """Makes machines real."""

    async def ensure(
        self,
        wanted: WantedMachine,
        workload: Client,
        *,
        kubeconfig: bytes,
        was_running: bool,
        now: datetime,
    ) -> Instance:
        """Take the next step of a machine's life, and tell where it is."""
        ...

    async def remove(self, key: ObjectKey, workload: Client | None) -> None:
        """Remove a machine. Without a workload cluster there is nothing left to tidy up there."""
        ...

    def clusters(self, namespace: str) -> Sequence[ObjectKey]:
        """The clusters in a namespace whose machines share something here."""
        ...

    async def forget(self, cluster: ObjectKey) -> None:
        """Remove what a cluster's machines shared: the last one is gone, or is another's now."""
        ...
