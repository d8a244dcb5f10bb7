"""The data of a control plane, for its backups, its archive and its restores."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Self

from capelin.controller import ObjectKey

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backup.manifests import epoch_of
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.etcd.api import EtcdApi
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.operations.engine import key_of

OpenEtcd = Callable[[], AbstractAsyncContextManager[EtcdApi]]


@dataclass(frozen=True, slots=True)
class ControlPlaneData:
    """A control plane, with the keys and the version of its data."""

    obj: CapelinControlPlane
    desired: ControlPlane
    authority: str
    """SHA-256 of its CA's certificate."""
    etcd: OpenEtcd
    """Opens a connection to its etcd."""
    epoch: str = ""
    """The present keys and version."""
    snapshot_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a snapshot is read. A member that defragments meanwhile would hang."""

    @classmethod
    def of(
        cls,
        obj: CapelinControlPlane,
        desired: ControlPlane,
        authorities: Authorities,
        etcd: OpenEtcd,
        snapshot_lock: asyncio.Lock | None = None,
    ) -> Self:
        """The data of a control plane with these keys and this version."""
        epoch = epoch_of(desired.version, desired.encryption.name, authorities.digest)
        lock = snapshot_lock or asyncio.Lock()
        return cls(obj, desired, authorities.identity, etcd, epoch, lock)

    @property
    def key(self) -> ObjectKey:
        return key_of(self.obj)

    @property
    def place(self) -> tuple[str, str]:
        """The namespace and the Cluster, which name the place of its backups."""
        return self.desired.namespace, self.desired.cluster
