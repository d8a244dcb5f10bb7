"""Limits how many connections to hosts are being opened at once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from capelin_machine_pool.hosts.api import Bastion

_AT_ONCE: Final = (64, 16)
"""The limit of a provider, and that for hosts that did not answer the last time."""
_BEHIND_BASTION: Final = (6, 2)
"""The same for the hosts behind one bastion. OpenSSH rejects some of more than ten logins at once
(`MaxStartups 10:30:100`), and other users log in there too."""


class Slots:
    """The limits of a provider. Dead hosts and slow bastions do not delay other hosts."""

    def __init__(self) -> None:
        self._limits: dict[tuple[str, int, bool], asyncio.Semaphore] = {}

    @asynccontextmanager
    async def taken(
        self, bastion: Bastion | None = None, *, after_failure: bool = False
    ) -> AsyncGenerator[None]:
        """Wait until a connection may be opened.

        Args:
            bastion: The bastion before the host, if any.
            after_failure: Whether the host did not answer the last time.
        """
        provider = self._limit("", 0, _AT_ONCE, after_failure=after_failure)
        if bastion is None:
            async with provider:
                yield
            return
        behind = self._limit(
            bastion.address, bastion.port, _BEHIND_BASTION, after_failure=after_failure
        )
        async with behind, provider:
            yield

    def _limit(
        self, address: str, port: int, counts: tuple[int, int], *, after_failure: bool
    ) -> asyncio.Semaphore:
        key = (address, port, after_failure)
        return self._limits.setdefault(key, asyncio.Semaphore(counts[after_failure]))
