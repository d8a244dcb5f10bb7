"""Clients of workload clusters, made from their kubeconfig secrets and kept while these last."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from capelin.api.views.core import Secret
from capelin.client.client import Client
from capelin.client.config import Config
from capelin.client.errors import ConfigError, NotFound
from capelin.client.transport import Options


@dataclass(slots=True)
class _Kept:
    client: Client
    made_from: str
    """Which secret, and a hash of its kubeconfig."""
    users: int = 0


class WorkloadClients:
    """One client a workload cluster, made anew when its kubeconfig changes.

    Args:
        client: reads the secrets in the management cluster.
        manager: the name under which the clients own fields, the management client's if not given.
        options: how hard and how patiently the clients ask.
        limit: how many clients are kept; those used least recently go first.
    """

    def __init__(
        self,
        client: Client,
        *,
        manager: str | None = None,
        options: Options | None = None,
        limit: int = 1000,
    ) -> None:
        self._client = client
        self._manager = manager or client.manager
        self._options = options
        self._limit = limit
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._retired: list[_Kept] = []

    @asynccontextmanager
    async def client(
        self, cluster: str, namespace: str, *, secret: Secret | None = None
    ) -> AsyncGenerator[Client]:
        """The client of a workload cluster, with the kubeconfig that its secret has now.

        It stays open until it is left, also when the secret changes meanwhile. Whoever has read
        the secret just now can give it.

        Raises:
            NotFound: there is no kubeconfig secret (yet), and so no cluster to reach.
            ConfigError: the kubeconfig cannot be used, or would reach into this machine.
        """
        name, key = f"{cluster}-kubeconfig", (namespace, cluster)
        if secret is None:
            try:
                secret = await self._client.get(Secret, name, namespace)
            except NotFound:
                await self.drop(cluster, namespace)
                raise
        kept = self._fitting(key, secret)
        kept.users += 1
        try:
            await self._close_unused()
            yield kept.client
        finally:
            kept.users -= 1
            await self._close_unused()

    async def drop(self, cluster: str, namespace: str) -> None:
        """Close the client of a cluster that is gone, as soon as nobody uses it."""
        self._retire((namespace, cluster))
        await self._close_unused()

    async def close(self) -> None:
        """Close every client, used or not."""
        everyone = [*self._kept.values(), *self._retired]
        self._kept.clear()
        self._retired.clear()
        for kept in everyone:
            await kept.client.close()

    def _fitting(self, key: tuple[str, str], secret: Secret) -> _Kept:
        """The client for what the secret says now. Without a pause, so that none is made twice."""
        content = secret.data.get("value", b"")
        made_from = f"{secret.uid} {hashlib.sha256(content).hexdigest()}"
        kept = self._kept.get(key)
        if kept is None or kept.made_from != made_from:
            config = _config(secret, content)
            client = Client(config, manager=self._manager, options=self._options)
            kept = _Kept(client, made_from)
            self._retire(key)
        # The order is that of insertion: who is used goes to the end, who is first goes first.
        self._kept.pop(key, None)
        self._kept[key] = kept
        if len(self._kept) > self._limit:
            self._retire(next(iter(self._kept)))
        return kept

    def _retire(self, key: tuple[str, str]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._retired.append(kept)

    async def _close_unused(self) -> None:
        unused = [kept for kept in self._retired if kept.users == 0]
        self._retired = [kept for kept in self._retired if kept.users > 0]
        for kept in unused:
            await kept.client.close()


def _config(secret: Secret, content: bytes) -> Config:
    at = f"secret {secret.namespace}/{secret.name}"
    if not content:
        raise ConfigError(f"{at} holds no kubeconfig: its key value is missing or empty")
    try:
        return Config.from_secret(content)
    except ConfigError as error:
        raise ConfigError(f"{at}: {error}") from None
