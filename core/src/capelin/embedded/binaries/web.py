"""Fetching over HTTPS: proxies, downloads that go on where they stopped, words."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from capelin.client.proxies import proxy_for
from capelin.embedded.binaries.errors import WayFailedError

PAUSES = (0.2, 1.0, 3.0)
_CONNECT = 10
_CHUNK = 2**18

Opener = Callable[[Mapping[str, str]], AbstractAsyncContextManager[aiohttp.ClientResponse]]


class UnreachableError(WayFailedError):
    """A host does not answer at all, so there is no use in asking it again soon."""


class BrokenOffError(WayFailedError):
    """An answer stopped in the middle."""


@dataclass(frozen=True, slots=True)
class Web:
    """The internet, through the proxy that the environment names."""

    session: aiohttp.ClientSession
    environment: Mapping[str, str]

    @asynccontextmanager
    async def get(
        self, url: str, headers: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """An answer of any status, with the network's troubles told in words."""
        host = urlsplit(url).hostname
        # The proxy is not named, because its address may hold a password.
        proxy = proxy_for(url, self.environment)
        try:
            async with self.session.get(url, headers=headers, proxy=proxy) as response:
                yield response
        except aiohttp.ClientProxyConnectionError as error:
            raise UnreachableError(f"the proxy for {host} does not answer") from error
        except aiohttp.ClientHttpProxyError as error:
            raise UnreachableError(f"the proxy for {host} answers {error.status}") from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise UnreachableError(f"{host} does not answer ({_why(error)})") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise BrokenOffError(f"{host} broke off in the middle of an answer") from error


@asynccontextmanager
async def connected(environment: Mapping[str, str]) -> AsyncGenerator[Web]:
    """Connections that do not wait long for a dead host, kept for as long as they are used.

    aiohttp's own reading of the environment stays off: it would send passwords from ~/.netrc.
    """
    async with aiohttp.ClientSession(
        # Sizes and digests are of what is stored, not of what a proxy compresses.
        headers={"User-Agent": "capelin", "Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=60),
    ) as session:
        yield Web(session, environment)


async def download(
    opener: Opener, into: Path, *, digest: str, size: int, advanced: Callable[[int], None]
) -> None:
    """Download a file whose SHA-256 and size are known; what an earlier try left is continued.

    When this fails, only bytes that may still turn out right are left.
    """
    for pause in (*PAUSES, None):
        try:
            await _continue(opener, into, size, advanced)
            break
        except BrokenOffError:
            if pause is None:
                raise
            await asyncio.sleep(pause)
    await asyncio.to_thread(_judge, into, digest, size)


async def _continue(opener: Opener, into: Path, size: int, advanced: Callable[[int], None]) -> None:
    with into.open("ab") as file:
        done = file.tell()
        if done >= size:
            return
        async with opener({"Range": f"bytes={done}-"} if done else {}) as response:
            if response.status != 206:
                # This server does not know ranges and sends all of it again.
                file.truncate(0)
                done = 0
            async for chunk in response.content.iter_chunked(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                advanced(done)
                if done > size:
                    return


def _judge(file: Path, digest: str, size: int) -> None:
    found = file.stat().st_size
    with file.open("rb") as content:
        actual = hashlib.file_digest(content, "sha256").hexdigest()
    if (found, actual) == (size, digest):
        return
    file.unlink()
    if found != size:
        has = f"only {found} of" if found < size else "more than"
        raise WayFailedError(f"a download is damaged: it has {has} {size} bytes")
    raise WayFailedError(
        f"a download is damaged or forged: its SHA-256 is {actual}, and should be {digest}"
    )


def _why(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "its name cannot be resolved"
        case aiohttp.ClientConnectorCertificateError():
            return "its certificate is not trusted"
        case aiohttp.ClientConnectorError():
            return os.strerror(error.errno).lower() if error.errno else "no connection"
        case _:
            return f"no connection within {_CONNECT} s"
