"""TLS that follows its files: renews certificates without a restart or a lost connection."""

import asyncio
import logging
import os
import ssl
from pathlib import Path

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""The interval for checking the files."""


class CertificateError(Exception):
    """Certificates that cannot be served."""


class Certificates:
    """The server's certificate and key, and the CA of its clients if they must present theirs.

    A connection keeps its certificate. New connections use the current files.
    """

    def __init__(self, folder: Path, client_ca: Path | None = None) -> None:
        self._certificate = folder / "tls.crt"
        self._key = folder / "tls.key"
        self._client_ca = client_ca
        self._tried = self._state()
        self._current = self._read()

    def context(self) -> ssl.SSLContext:
        context = self._read()
        # OpenSSL calls it in every handshake, with or without a server name from the client.
        context.sni_callback = self._use_current
        return context

    def refresh(self) -> bool:
        """Read the files if they changed. Returns whether this server now uses them."""
        state = self._state()
        if state == self._tried:
            return False
        self._tried = state
        try:
            self._current = self._read()
        except CertificateError as error:
            # Perhaps only half of the files are written. The current certificate is still good.
            _log.warning("%s. Keeping the current certificate", error)
            return False
        _log.info("serving the new certificate in %s", self._certificate)
        return True

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.refresh()

    def _use_current(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _listening: object
    ) -> None:
        connection.context = self._current

    def _state(self) -> tuple[object, ...]:
        """A value that changes when a file changes."""
        return tuple(
            _state_of(path) for path in (self._certificate, self._key, self._client_ca) if path
        )

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # Without a password, OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")
        except OSError as error:
            raise CertificateError(self._problem(error)) from None
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                why = getattr(error, "reason", None) or error.strerror or "unreadable"
                raise CertificateError(
                    f"{self._client_ca} does not contain a CA for clients ({why}). Use a file with"
                    " certificates in PEM"
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _problem(self, error: OSError) -> str:
        if isinstance(error, ssl.SSLError):
            files = f"{self._certificate} and {self._key}"
            return f"{files} are not a certificate and its key ({error.reason or 'unreadable'})"
        for path in (self._certificate, self._key):
            if not os.access(path, os.R_OK):
                return f"{path} is unreadable. Mount the certificate there, or use another folder"
        return f"{self._certificate} cannot be read ({error.strerror})"


def _state_of(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
