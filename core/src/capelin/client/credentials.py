"""What we show an API server to prove who we are, kept fresh as tokens and files change."""

import asyncio
import base64
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from capelin.client import exec_plugin, tls
from capelin.client.access import ExecPlugin, Impersonation, Material
from capelin.client.config import Config
from capelin.client.errors import CredentialError
from capelin.client.exec_plugin import Credential

log = logging.getLogger(__name__)

_LOOK_AGAIN = 10.0
"""Seconds after which files are read again: kubelet replaces a token minutes before its end."""


@dataclass(frozen=True, slots=True, repr=False)
class Proof:
    """Headers and a TLS context. The same object for as long as nothing has changed."""

    headers: tuple[tuple[str, str], ...]
    tls: ssl.SSLContext | None


@dataclass(frozen=True, slots=True, repr=False)
class _Material:
    ca: bytes | None
    certificate: bytes | None
    key: bytes | None
    token: str | None


class Credentials:
    """Reads a configuration's files, runs its program, and gives the `Proof` that follows.

    Args:
        config: what to read and to run.
        clock: seconds that never go back.
        now: the time of day, by which credentials expire.
    """

    def __init__(
        self,
        config: Config,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._config = config
        self._clock = clock
        self._now = now
        self._lock = asyncio.Lock()
        self._handed_out: Credential | None = None
        self._material: _Material | None = None
        self._proof: Proof | None = None
        self._look_again = 0.0

    async def proof(self) -> Proof:
        """What to show now.

        Raises:
            CredentialError: it cannot be had; the message says why.
        """
        if self._proof is not None and self._clock() < self._look_again:
            return self._proof
        async with self._lock:
            if self._proof is None or self._clock() >= self._look_again:
                self._proof = await self._renewed()
                self._look_again = self._clock() + _LOOK_AGAIN
            return self._proof

    async def after_refusal(self, refused: Proof) -> Proof | None:
        """Another proof than the one that the server does not take, if there is one by now."""
        if refused is self._proof:
            self._handed_out = None
            self._look_again = 0.0
        proof = await self.proof()
        return None if proof is refused else proof

    async def _renewed(self) -> Proof:
        try:
            material = await self._read()
            if self._proof is not None and material == self._material:
                return self._proof
            proof = self._prove(material)
        except CredentialError as error:
            if self._proof is None:
                raise
            # Files are replaced one after the other: half of a change is not a reason to stop.
            log.warning("The credentials in use are kept: %s", error)
            return self._proof
        self._material = material
        return proof

    async def _read(self) -> _Material:
        user = self._config.user
        ca = _read(self._config.server.ca)
        if user.exec is not None:
            handed_out = await self._ask(user.exec, ca)
            return _Material(ca, handed_out.certificate, handed_out.key, handed_out.token)
        token = _read(user.token_file)
        return _Material(
            ca,
            _read(user.certificate),
            _read(user.key),
            token.decode().strip() if token is not None else user.token,
        )

    async def _ask(self, plugin: ExecPlugin, ca: bytes | None) -> Credential:
        if self._handed_out is None or self._handed_out.is_over(
            self._now() + timedelta(seconds=_LOOK_AGAIN)
        ):
            self._handed_out = await exec_plugin.run(plugin, self._config.server, ca)
        return self._handed_out

    def _prove(self, material: _Material) -> Proof:
        user, server = self._config.user, self._config.server
        headers: list[tuple[str, str]] = []
        if material.token:
            if not (material.token.isascii() and material.token.isprintable()):
                raise CredentialError(
                    f"what should prove who we are to {server.address} is not a token: "
                    f"it has characters that no token has"
                )
            headers.append(("Authorization", f"Bearer {material.token}"))
        elif user.username:
            pair = f"{user.username}:{user.password or ''}".encode()
            headers.append(("Authorization", f"Basic {base64.b64encode(pair).decode()}"))
        if user.impersonate is not None:
            headers.extend(_impersonate(user.impersonate))
        secure = server.address.startswith("https:")
        return Proof(
            tuple(headers),
            tls.context(material.ca, material.certificate, material.key, verify=server.verify)
            if secure
            else None,
        )


def _read(material: Material | None) -> bytes | None:
    if not isinstance(material, Path):
        return material
    try:
        return material.read_bytes()
    except OSError as error:
        raise CredentialError(f"{material} cannot be read: {error.strerror}") from None


def _impersonate(other: Impersonation) -> list[tuple[str, str]]:
    headers = [("Impersonate-User", other.user)]
    if other.uid:
        headers.append(("Impersonate-Uid", other.uid))
    headers.extend(("Impersonate-Group", group) for group in other.groups)
    headers.extend(
        (f"Impersonate-Extra-{key}", value)
        for key, values in other.extra.items()
        for value in values
    )
    return headers
