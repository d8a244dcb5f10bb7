"""How control planes run: one package per backend, all with the same protocol."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol

from capelin.client import Config
from capelin.controller import ObjectKey
from capelin.provider import Blocked

from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Endpoint, Observed
from capelin_control_plane.etcd.api import EtcdApi
from capelin_control_plane.keys.certificates import Authorities

__all__ = ["Backend", "ReadSnapshot", "Wake", "reconcile_instances"]

Wake = Callable[[ObjectKey], None]
"""Has the reconciler look at a control plane again."""
ReadSnapshot = Callable[[], AsyncGenerator[bytes]]
"""Reads a snapshot of etcd in pieces. It is complete and correct if the last piece arrives."""


class Backend(Protocol):
    """Runs control planes. A new backend implements these methods.

    Each may raise `Blocked`: it becomes a condition, and the control plane keeps running.
    """

    async def allocate(
        self,
        key: ObjectKey,
        desired: ControlPlane,
        authorities: Authorities,
        address: str | None,
    ) -> Endpoint:
        """Find or choose where a control plane runs, and renew its certificates. Starts nothing.

        Args:
            key: The object's namespace and name.
            desired: The desired state.
            authorities: The CAs that sign its certificates.
            address: The address of an earlier allocation. None if there was none, or the provider
                ended before it could write it down.
        """
        ...

    async def observe(self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane) -> Observed:
        """Read the state of a control plane. From now on, keep its planned instances running."""
        ...

    async def apply(
        self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane, observed: Observed
    ) -> bool:
        """Take the next step to the desired state. Returns whether it changed anything.

        The backend decides how many steps to take, and may leave some to Kubernetes controllers.
        """
        ...

    async def keep_running(self, key: ObjectKey, address: str) -> None:
        """Keep planned instances running at an address while the desired state is unknown."""
        ...

    async def release(self, key: ObjectKey) -> None:
        """Stop supervising a control plane. It keeps running."""
        ...

    async def start_again(self, key: ObjectKey, address: str) -> frozenset[str]:
        """Start instances of a released control plane that have ended, and change nothing else.

        Returns the names of those that do not run yet.
        """
        ...

    async def allocated(self) -> set[ObjectKey]:
        """The objects that something on this backend belongs to, whether or not they exist."""
        ...

    async def delete(self, key: ObjectKey) -> None:
        """Stop a control plane, and delete everything that belongs to the object of this key."""
        ...

    async def close(self) -> None:
        """Release the backend's own resources. Control planes keep running."""
        ...

    def etcd(
        self, key: ObjectKey, index: int | None = None
    ) -> AbstractAsyncContextManager[EtcdApi]:
        """A connection to the member of an index, or to any member that is ready."""
        ...

    async def prepare_restore(
        self, key: ObjectKey, desired: ControlPlane, read: ReadSnapshot, *, bump: int
    ) -> None:
        """Create the data of the requested restore, which is not in use yet. Takes long.

        Args:
            key: The object's namespace and name.
            desired: The desired state, with the request.
            read: Reads the snapshot.
            bump: How much its revisions grow.
        """
        ...

    def client_config(self, endpoint: Endpoint) -> Config: ...


async def reconcile_instances(
    backend: Backend, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane
) -> Observed:
    """Take the next step towards the desired state."""
    observed = await backend.observe(key, endpoint, desired)
    try:
        if not await backend.apply(key, endpoint, desired, observed):
            return observed
    except Blocked as blocked:
        return replace(observed, blocked=blocked)
    return replace(await backend.observe(key, endpoint, desired), stepped=True)
