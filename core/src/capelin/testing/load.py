"""Requests to a control plane, each on a connection of its own, and none of them ever repeated."""

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from capelin.client import Config, tls


@dataclass
class Load:
    """Writes keys and reads them again, and remembers every request that failed."""

    config: Config
    pause: float = 0.0
    sent: int = 0
    written: set[str] = field(default_factory=set[str])
    failed: list[str] = field(default_factory=list[str])
    _sent: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def reaches(self, count: int) -> None:
        """Wait until so many requests were sent."""
        async with self._sent:
            await self._sent.wait_for(lambda: self.sent >= count)

    async def run(self) -> None:
        """Ask until cancelled."""
        path = "/api/v1/namespaces/default/configmaps"
        url = f"{self.config.server.address}{path}"
        connector = aiohttp.TCPConnector(ssl=trust(self.config), force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            for number in range(10**9):
                name = f"key-{number:06}"
                if await self._ask(session, "POST", url, json={"metadata": {"name": name}}):
                    self.written.add(name)
                await self._ask(session, "GET", f"{url}/{name}")
                await asyncio.sleep(self.pause)

    async def _ask(
        self, session: aiohttp.ClientSession, method: str, url: str, **options: Any
    ) -> bool:
        async with self._sent:
            self.sent += 1
            self._sent.notify_all()
        try:
            async with session.request(method, url, **options) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, OSError) as error:
            self.failed.append(f"{method} {url}: {error!r}")
            return False
        if answer.status >= 300:
            self.failed.append(f"{method} {url}: {answer.status} {text}")
        return answer.status < 300


def trust(config: Config) -> ssl.SSLContext:
    """Whom to trust and what to show, from a kubeconfig whose parts are within it."""
    parts = (config.server.ca, config.user.certificate, config.user.key)
    ca, certificate, key = (part if isinstance(part, bytes) else None for part in parts)
    return tls.context(ca, certificate, key)
