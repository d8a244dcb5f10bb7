"""Control planes whose object is gone, for example since somebody removed its finalizer."""

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
    missing_since: Mapping[ObjectKey, datetime], grace: timedelta | None, now: datetime
) -> Collection[ObjectKey]:
    """Whose objects have been missing for longer than the grace. None keeps all."""
    if grace is None:
        return []
    return [key for key, since in missing_since.items() if now - since >= grace]


class Orphans:
    """Reports control planes without an object, and deletes them after a grace if there is one.

    Without a grace they are only reported: the object may be in another management cluster, whose
    provider shares the state folder.
    """

    def __init__(self, backends: Iterable[Backend], grace: timedelta | None) -> None:
        self._backends = tuple(backends)
        self._grace = grace
        self._missing_since: dict[ObjectKey, datetime] = {}

    async def sweep(self, ctx: Context) -> None:
        """Look every minute."""
        while True:
            await self.look(ctx)
            await asyncio.sleep(_PERIOD_SECONDS)

    async def look(self, ctx: Context) -> None:
        """Report and delete once."""
        allocated = [key for backend in self._backends for key in await _allocated(ctx, backend)]
        missing = {key for key in allocated if await self._is_missing(ctx, key)}
        for key in missing - self._missing_since.keys():
            then = "" if self._grace is None else f"; it is deleted after {self._grace}"
            ctx.log.warning("control plane %s has no object any more%s", key, then)
        since = self._missing_since
        self._missing_since = {key: since.get(key, ctx.now()) for key in missing}
        for key in overdue(self._missing_since, self._grace, ctx.now()):
            try:
                for backend in self._backends:
                    await backend.delete(key)
            except Blocked as blocked:
                ctx.log.warning("control plane %s cannot be deleted: %s", key, blocked)
            else:
                ctx.log.warning("deleted control plane %s, which had no object any more", key)
                del self._missing_since[key]

    async def _is_missing(self, ctx: Context, key: ObjectKey) -> bool:
        try:
            return await ctx.client.find(CapelinControlPlane, key.name, key.namespace) is None
        except ClientError:
            # Not ours to see, or nobody can tell now.
            return False


async def _allocated(ctx: Context, backend: Backend) -> Collection[ObjectKey]:
    try:
        return await backend.allocated()
    except ClientError as error:
        ctx.log.warning("cannot look for control planes without an object: %s", error)
        return []
