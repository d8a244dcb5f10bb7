"""A component in its place in an environment: its folder, its credentials, its process."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp

from capelin.api import Unstructured
from capelin.client import Client, Token
from capelin.embedded.management.credentials import Account, keep_account, keep_certificate
from capelin.embedded.management.environment import Environment
from capelin.embedded.management.foundation import Foundation
from capelin.embedded.management.manifests import Listener, installed
from capelin.embedded.management.plan import Component, Place, Purpose, command
from capelin.embedded.processes import Declared
from capelin.pki import KeyPair

_PROBE_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Listening:
    """The ports of a manager, and who vouches for it there."""

    ports: Mapping[Purpose, int]
    ca: KeyPair


@dataclass(frozen=True, slots=True)
class Manager:
    """A component in its place in the environment."""

    component: Component
    foundation: Foundation
    environment: Environment
    listening: Listening

    @property
    def folder(self) -> Path:
        """Its credentials."""
        return self.environment.credentials / self.component.label

    @property
    def address(self) -> str:
        """Where it listens, so that the API server reaches it."""
        return self.foundation.address

    @property
    def account(self) -> Account:
        """Who it is to the API server."""
        launch = self.component.launch
        return Account(launch.namespace, launch.service_account, self.foundation.server)

    def manifests(self, which: Sequence[Unstructured]) -> list[Unstructured]:
        """Manifests of it as the API server of this environment takes them."""
        port = self.listening.ports.get("webhooks")
        ca = self.listening.ca.certificate_pem
        listener = None if port is None else Listener(self.address, port, ca)
        return installed(which, provider=self.component.label, listener=listener)

    def keep_certificate(self) -> None:
        """See to it that it can prove for long enough that it is the one to call."""
        keep_certificate(
            self.folder,
            self.listening.ca,
            common_name=self.component.label,
            address=self.address,
            now=datetime.now(UTC),
        )

    async def keep_account(self, client: Client) -> None:
        """See to it that its token is good for long enough."""

        async def ask(namespace: str, name: str, validity: timedelta) -> Token:
            return await client.create_token(name, namespace, seconds=int(validity.total_seconds()))

        await keep_account(self.folder, self.account, ask, datetime.now(UTC))

    def declared(self) -> Declared:
        """Its process."""
        place = Place(
            address=self.address,
            ports=self.listening.ports,
            folder=self.folder,
            workloads=self.environment.workloads,
            authority=self.environment.authority,
        )
        health = f"http://{self.address}:{self.listening.ports['health']}/readyz"
        return Declared(
            name=self.component.label,
            command=command(self.component, place),
            after=tuple(each.name for each in self.foundation.processes),
            ready=partial(answering, health),
            grace=_GRACE_SECONDS,
        )


async def answering(url: str) -> AsyncGenerator[str, None]:
    """Ready when it answers 200 over HTTP, as the managers' health endpoints do."""
    timeout = aiohttp.ClientTimeout(total=_PROBE_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            try:
                async with session.get(url) as response:
                    yield "" if response.status == 200 else f"{url} answers {response.status}"
            except (TimeoutError, aiohttp.ClientError):
                yield f"{url} does not answer"
