"""Clients of workload clusters, made from their kubeconfig Secrets and reused."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from capelin.api.core import Secret
from capelin.client.client import Client
from capelin.client.config import Config
from capelin.client.destinations import Destinations
from capelin.client.errors import ConfigError, NotFound
from capelin.client.transport import WORKLOAD_MAX_BYTES, ClientOptions


@dataclass(slots=True)
class _Entry:
    client: Client
    source: str
    """The uid of the Secret and a hash of its kubeconfig."""
    users: int = 0


class WorkloadClients:
    """One client per workload cluster, replaced when its kubeconfig changes.

    Args:
        client: reads the secrets in the management cluster.
        manager: the field manager of the clients; that of `client` if not given.
        options: rate limits, timeouts and bounds of the clients; if not given, responses of 16 MiB
            and no loopback and link-local addresses but those of `CAPELIN_ALLOWED_NETWORKS`.
        limit: how many clients are kept; the least recently used is closed first.
    """

    def __init__(
        self,
        client: Client,
        *,
        manager: str | None = None,
        options: ClientOptions | None = None,
        limit: int = 1000,
    ) -> None:
        self._client = client
        self._manager = manager or client.manager
        options = options or ClientOptions()
        size = WORKLOAD_MAX_BYTES if options.max_bytes is None else options.max_bytes
        destinations = options.destinations or Destinations.from_environ()
        self._options = replace(options, max_bytes=size, destinations=destinations)
        self._limit = limit
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._retired: list[_Entry] = []

    @asynccontextmanager
    async def client(
        self, cluster: str, namespace: str, *, secret: Secret | None = None
    ) -> AsyncGenerator[Client]:
        """The client of a workload cluster, with the current kubeconfig of its Secret.

        It stays open inside the `async with`, even if the Secret changes meanwhile. Pass the
        Secret if you have just read it.

        Raises:
            NotFound: there is no kubeconfig Secret (yet).
            ConfigError: the kubeconfig cannot be used, or names programs or files here.
        """
        name, key = f"{cluster}-kubeconfig", (namespace, cluster)
        if secret is None:
            try:
                secret = await self._client.get(Secret, name, namespace)
            except NotFound:
                await self.drop(cluster, namespace)
                raise
        entry = self._entry_for(key, secret)
        entry.users += 1
        try:
            await self._close_unused()
            yield entry.client
        finally:
            entry.users -= 1
            await self._close_unused()

    async def drop(self, cluster: str, namespace: str) -> None:
        """Close the client of a deleted cluster as soon as nobody uses it."""
        self._retire((namespace, cluster))
        await self._close_unused()

    async def close(self) -> None:
        """Close all clients, even those in use."""
        entries = [*self._entries.values(), *self._retired]
        self._entries.clear()
        self._retired.clear()
        for entry in entries:
            await entry.client.close()

    def _entry_for(self, key: tuple[str, str], secret: Secret) -> _Entry:
        """The client for the Secret's content. Not async, so that no client is made twice."""
        content = secret.data.get("value", b"")
        source = f"{secret.uid} {hashlib.sha256(content).hexdigest()}"
        entry = self._entries.get(key)
        if entry is None or entry.source != source:
            client = self._client_of(secret, content)
            entry = _Entry(client, source)
            self._retire(key)
        # A dict keeps the order of insertion: the least recently used is the first.
        self._entries.pop(key, None)
        self._entries[key] = entry
        if len(self._entries) > self._limit:
            self._retire(next(iter(self._entries)))
        return entry

    def _client_of(self, secret: Secret, content: bytes) -> Client:
        where = f"secret {secret.namespace}/{secret.name}"
        if not content:
            raise ConfigError(f"{where} holds no kubeconfig: its key value is missing or empty")
        try:
            config = Config.from_secret(content)
            return Client(config, manager=self._manager, options=self._options)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def _retire(self, key: tuple[str, str]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._retired.append(entry)

    async def _close_unused(self) -> None:
        unused = [entry for entry in self._retired if entry.users == 0]
        self._retired = [entry for entry in self._retired if entry.users > 0]
        for entry in unused:
            await entry.client.close()
