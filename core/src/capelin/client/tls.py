"""TLS contexts from PEM data, without a private key touching the disk."""

import os
import ssl
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

from capelin.client.errors import CredentialError


def context(
    ca: bytes | None, certificate: bytes | None, key: bytes | None, *, verify: bool = True
) -> ssl.SSLContext:
    """What to trust and what to show: the system's roots if `ca` is none."""
    try:
        made = ssl.create_default_context(cadata=ca.decode() if ca is not None else None)
    except (ssl.SSLError, ValueError):
        raise CredentialError("the certificate authority is not PEM that OpenSSL reads") from None
    # Python 3.13 turned on checks that many clusters' own CAs do not pass, and Go does not make.
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # A cluster's CA may be an intermediate one, of which Go too wants no more than to be told.
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if certificate is not None and key is not None:
        _show(made, certificate, key)
    return made


def _show(made: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # OpenSSL would otherwise ask for the password of an encrypted key on the terminal.
    try:
        with _unnamed_file(certificate + b"\n" + key) as path:
            made.load_cert_chain(path, password="")
    except (ssl.SSLError, ValueError, OSError):
        raise CredentialError(
            "the client certificate cannot be used: it and its key have to be PEM, "
            "not encrypted, and belong together"
        ) from None


@contextmanager
def _unnamed_file(data: bytes) -> Generator[str]:
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
