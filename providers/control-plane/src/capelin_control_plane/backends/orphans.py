"""Control planes without an object, for example after their finalizer was removed by hand."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from capelin.client import ClientError
from capelin.controller import Context, ObjectKey
from capelin.provider import Blocked

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backends import Backend

_PERIOD_SECONDS = 60.0


def overdue(
    missing_since: Mapping[ObjectKey, datetime],
    deletion_requested: Collection[ObjectKey],
    grace: timedelta | None,
    now: datetime,
) -> Collection[ObjectKey]:
    """Which control planes to delete: their deletion was requested, and the grace is over.

    An object can also be missing because it moved to another management cluster, or because its
    kind was uninstalled. Such a control plane may be in use and keeps running. None keeps all.
    """
    if grace is None:
        return []
    return [
        key
        for key, since in missing_since.items()
        if key in deletion_requested and now - since >= grace
    ]


class Orphans:
    """Reports control planes without an object, and deletes some after a grace if there is one."""

    def __init__(self, backends: Iterable[Backend], grace: timedelta | None) -> None:
        self._backends = tuple(backends)
        self._grace = grace
        self._missing_since: dict[ObjectKey, datetime] = {}
        self._deletion_requested: set[ObjectKey] = set()

    def request_deletion(self, key: ObjectKey) -> None:
        """The object is being deleted, and is not paused: a move would have paused it."""
        self._deletion_requested.add(key)

    def keep(self, key: ObjectKey) -> None:
        """The object is not being deleted, or is paused."""
        self._deletion_requested.discard(key)

    async def sweep(self, ctx: Context) -> None:
        """Look for orphans every minute."""
        while True:
            await self.look(ctx)
            await asyncio.sleep(_PERIOD_SECONDS)

    async def look(self, ctx: Context) -> None:
        """Report and delete once."""
        allocated = [key for backend in self._backends for key in await _allocated(ctx, backend)]
        missing = {key for key in allocated if await self._is_missing(ctx, key)}
        for key in missing - self._missing_since.keys():
            is_deleted = self._grace is not None and key in self._deletion_requested
            then = f"it is deleted after {self._grace}" if is_deleted else "it keeps running"
            ctx.log.warning("control plane %s has no object any more: %s", key, then)
        since = self._missing_since
        self._missing_since = {key: since.get(key, ctx.now()) for key in missing}
        for key in overdue(self._missing_since, self._deletion_requested, self._grace, ctx.now()):
            try:
                for backend in self._backends:
                    await backend.delete(key)
            except (Blocked, ClientError, OSError) as error:
                # The next round tries again.
                ctx.log.warning("control plane %s cannot be deleted: %s", key, error)
            else:
                ctx.log.warning("deleted control plane %s, which had no object any more", key)
                del self._missing_since[key]
                self.keep(key)

    async def _is_missing(self, ctx: Context, key: ObjectKey) -> bool:
        try:
            return await ctx.client.find(CapelinControlPlane, key.name, key.namespace) is None
        except ClientError:
            # The provider may not read it, or the API server does not answer.
            return False


async def _allocated(ctx: Context, backend: Backend) -> Collection[ObjectKey]:
    try:
        return await backend.allocated()
    except (ClientError, OSError) as error:
        ctx.log.warning("cannot look for control planes without an object: %s", error)
        return []
