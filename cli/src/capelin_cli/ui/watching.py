"""Fills the store from lists and watches. A page of a list is the most that is read at once."""

import asyncio
import logging
from contextlib import aclosing, suppress
from typing import Any, Final

from capelin.api import Resource
from capelin.api.capi import Cluster, Machine, MachineDeployment, MachinePool
from capelin.client import Client, ClientError, Expired, Forbidden, NotServed, Unauthorized
from capelin.contract import served_resource
from capelin_lifecycle.api import LifecycleResult

from capelin_cli.explain.facts import typed
from capelin_cli.ui.observed import Key
from capelin_cli.ui.store import Store

log = logging.getLogger(__name__)

_PAGE: Final = 50
_RETRY_SECONDS: Final = 5.0
_PROBE_SECONDS: Final = 3.0
_FIXED: Final = (Cluster, MachinePool, MachineDeployment, Machine, LifecycleResult)


class Watcher:
    """Follows all kinds that the page shows, in one namespace or in all."""

    def __init__(self, client: Client, store: Store, namespace: str | None = None) -> None:
        self._client = client
        self._store = store
        self._namespace = namespace
        self._pending = {kind.resource.kind for kind in _FIXED}
        """The kinds whose first list is not complete."""
        self._troubles: dict[str, str] = {}
        """The last error of each source."""

    async def run(self) -> None:
        """Follow until the caller cancels."""
        async with asyncio.TaskGroup() as group:
            for kind in _FIXED:
                group.create_task(self._follow(kind.resource))
            group.create_task(self._probe())
            followed: set[tuple[str, str]] = set()
            number = -1
            while True:
                # Infrastructure and control planes are of any kind.
                for group_name, kind in self._store.kinds() - followed:
                    followed.add((group_name, kind))
                    group.create_task(self._follow_served(group_name, kind))
                await self._store.changed_after(number)
                number = self._store.number

    async def _follow_served(self, group: str, kind: str) -> None:
        """Follow a kind that may not be installed yet."""
        while True:
            with suppress(ClientError):
                resource = await served_resource(self._client, group, kind)
                if resource is not None:
                    await self._follow(resource)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self, resource: Resource) -> None:
        while True:
            try:
                version = await self._list(resource)
                await self._succeeded(resource.kind)
                await self._watch(resource, version)
            except Expired:
                continue
            except NotServed:
                await self._succeeded(resource.kind)
                await asyncio.sleep(_RETRY_SECONDS)
            except ClientError as error:
                refused = isinstance(error, (Forbidden, Unauthorized))
                await self._failed(resource.kind, str(error))
                await asyncio.sleep(_RETRY_SECONDS if refused else 1.0)

    async def _list(self, resource: Resource) -> str:
        """Read all objects. Returns the version from which to watch."""
        names: set[Key] = set()
        parameters, version = {"limit": str(_PAGE)}, ""
        while True:
            page: dict[str, Any] = await self._client.request(
                "GET", resource.path(self._namespace), parameters=parameters
            )
            for raw in page.get("items") or ():
                metadata = raw["metadata"]
                names.add((metadata.get("namespace", ""), metadata["name"]))
                self._store.apply(resource, typed(resource, raw))
            version = page["metadata"]["resourceVersion"]
            await self._store.announce()
            if not (token := page["metadata"].get("continue")):
                break
            parameters["continue"] = token
        self._store.sweep(resource, names, self._namespace)
        return version

    async def _watch(self, resource: Resource, version: str) -> None:
        events = self._client.watch(resource, self._namespace, since=version)
        async with aclosing(events):
            async for event in events:
                raw = typed(resource, event.object)
                self._store.apply(resource, raw, deleted=event.type == "DELETED")
                await self._store.announce()

    async def _probe(self) -> None:
        """Report an API server that does not answer: watches hide it, because they reconnect."""
        while True:
            try:
                await self._client.request("GET", "/version", timeout=_PROBE_SECONDS)
                await self._succeeded("")
            except ClientError as error:
                await self._failed("", f"The API server does not answer: {error}")
            await asyncio.sleep(_PROBE_SECONDS)

    async def _succeeded(self, source: str) -> None:
        self._pending.discard(source)
        self._troubles.pop(source, None)
        await self._report()

    async def _failed(self, source: str, trouble: str) -> None:
        log.debug("%s: %s", source, trouble)
        self._troubles[source] = trouble
        await self._report()

    async def _report(self) -> None:
        trouble = next((text for _, text in sorted(self._troubles.items())), "")
        self._store.report(loading=bool(self._pending), trouble=trouble)
        await self._store.announce()
