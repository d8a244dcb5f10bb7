"""Credentials for an API server, refreshed when tokens and files change, and TLS contexts."""

import asyncio
import base64
import logging
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from capelin.client import exec_plugin
from capelin.client.config import Config
from capelin.client.errors import CredentialError
from capelin.client.exec_plugin import Credential
from capelin.client.server import ExecPlugin, Impersonation, PemSource

log = logging.getLogger(__name__)

_REFRESH_SECONDS = 10.0
"""The interval for reading files again. The kubelet replaces a token minutes before it expires."""


@dataclass(frozen=True, slots=True, repr=False)
class Proof:
    """Headers and a TLS context for requests. The same object as long as nothing has changed."""

    headers: tuple[tuple[str, str], ...]
    tls: ssl.SSLContext | None


@dataclass(frozen=True, slots=True, repr=False)
class _Material:
    ca: bytes | None
    certificate: bytes | None
    key: bytes | None
    token: str | None


class Credentials:
    """Reads the files of a configuration, runs its exec plugin, and makes a `Proof` from them.

    Args:
        config: The files and the exec plugin.
        clock: A monotonic clock.
        now: The wall clock, by which credentials expire.
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
        self._credential: Credential | None = None
        self._material: _Material | None = None
        self._proof: Proof | None = None
        self._refresh_at = 0.0

    async def proof(self) -> Proof:
        """The credentials to use now.

        Raises:
            CredentialError: The credentials are not available.
        """
        if self._proof is not None and self._clock() < self._refresh_at:
            return self._proof
        async with self._lock:
            if self._proof is None or self._clock() >= self._refresh_at:
                self._proof = await self._renew()
                self._refresh_at = self._clock() + _REFRESH_SECONDS
            return self._proof

    async def after_refusal(self, refused: Proof) -> Proof | None:
        """New credentials after the server rejected some, or `None` if they have not changed."""
        if refused is self._proof:
            self._credential = None
            self._refresh_at = 0.0
        proof = await self.proof()
        return None if proof is refused else proof

    async def _renew(self) -> Proof:
        try:
            material = await self._read()
            if self._proof is not None and material == self._material:
                return self._proof
            proof = self._make_proof(material)
        except CredentialError as error:
            if self._proof is None:
                raise
            # Tools replace files one after the other, so we may have read half of a change.
            log.warning("Keeping the current credentials: %s", error)
            return self._proof
        self._material = material
        return proof

    async def _read(self) -> _Material:
        user = self._config.user
        ca = _read(self._config.server.ca)
        if user.exec is not None:
            credential = await self._run_plugin(user.exec, ca)
            return _Material(ca, credential.certificate, credential.key, credential.token)
        token = _read(user.token_file)
        return _Material(
            ca,
            _read(user.certificate),
            _read(user.key),
            token.decode().strip() if token is not None else user.token,
        )

    async def _run_plugin(self, plugin: ExecPlugin, ca: bytes | None) -> Credential:
        if self._credential is None or self._credential.is_expired(
            self._now() + timedelta(seconds=_REFRESH_SECONDS)
        ):
            self._credential = await exec_plugin.run(plugin, self._config.server, ca)
        return self._credential

    def _make_proof(self, material: _Material) -> Proof:
        user, server = self._config.user, self._config.server
        headers: list[tuple[str, str]] = []
        if material.token:
            if not (material.token.isascii() and material.token.isprintable()):
                raise CredentialError(
                    f"the token for {server.address} is not valid: "
                    f"it has characters that tokens cannot contain"
                )
            headers.append(("Authorization", f"Bearer {material.token}"))
        elif user.username:
            pair = f"{user.username}:{user.password or ''}".encode()
            headers.append(("Authorization", f"Basic {base64.b64encode(pair).decode()}"))
        if user.impersonate is not None:
            headers.extend(_impersonation_headers(user.impersonate))
        secure = server.address.startswith("https:")
        return Proof(
            tuple(headers),
            tls_context(material.ca, material.certificate, material.key, verify=server.verify)
            if secure
            else None,
        )


def _read(source: PemSource | None) -> bytes | None:
    if not isinstance(source, Path):
        return source
    try:
        return source.read_bytes()
    except OSError as error:
        raise CredentialError(f"{source} cannot be read: {error.strerror}") from None


def _impersonation_headers(user: Impersonation) -> list[tuple[str, str]]:
    headers = [("Impersonate-User", user.user)]
    if user.uid:
        headers.append(("Impersonate-Uid", user.uid))
    headers.extend(("Impersonate-Group", group) for group in user.groups)
    headers.extend(
        (f"Impersonate-Extra-{key}", value)
        for key, values in user.extra.items()
        for value in values
    )
    return headers


def tls_context(
    ca: bytes | None, certificate: bytes | None, key: bytes | None, *, verify: bool = True
) -> ssl.SSLContext:
    """A client's TLS context from PEM data. It never writes private keys to disk.

    Args:
        ca: The certificates to trust, or `None` for those of the system.
        certificate: The client certificate.
        key: The key of the client certificate.
        verify: Whether to verify the server's certificate.
    """
    try:
        context = ssl.create_default_context(cadata=ca.decode() if ca is not None else None)
    except (ssl.SSLError, ValueError):
        raise CredentialError("the certificate authority is not PEM that OpenSSL reads") from None
    # Python 3.13 enabled checks that the CAs of many clusters fail and that Go does not make.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # The CA of a cluster may be an intermediate one. Go accepts that too.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None and key is not None:
        load_certificate(context, certificate, key)
    return context


def load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Make a TLS context present a certificate. The key is never written to disk.

    Raises:
        CredentialError: The certificate or the key is not usable.
    """
    # Without a password, OpenSSL would prompt for that of an encrypted key on the terminal.
    try:
        with _private_file(certificate + b"\n" + key) as path:
            context.load_cert_chain(path, password="")
    except (ssl.SSLError, ValueError, OSError):
        raise CredentialError(
            "the certificate cannot be used: it and its key have to be PEM, "
            "not encrypted, and belong together"
        ) from None


@contextmanager
def _private_file(data: bytes) -> Generator[str]:
    """A path that only we can open: in memory on Linux, elsewhere a private temporary file."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("credentials")
        with os.fdopen(number, "wb", buffering=0) as file:
            file.write(data)
            yield f"/proc/self/fd/{number}"
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name
