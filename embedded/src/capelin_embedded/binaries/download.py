"""Downloads over HTTPS: proxies, resuming, checks of size and digest, readable errors."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from capelin.client import proxy_for

from capelin_embedded.binaries.errors import SourceFailedError

PAUSES = (0.2, 1.0, 3.0)
_CONNECT = 10
_CHUNK = 2**18

OpenResponse = Callable[[Mapping[str, str]], AbstractAsyncContextManager[aiohttp.ClientResponse]]


class UnreachableError(SourceFailedError):
    """A host does not answer at all, so trying it again soon is useless."""


class InterruptedDownloadError(SourceFailedError):
    """The connection ended in the middle of a response."""


@dataclass(frozen=True, slots=True)
class Web:
    """HTTP requests, through the proxy from the environment."""

    session: aiohttp.ClientSession
    environment: Mapping[str, str]

    @asynccontextmanager
    async def get(
        self, url: str, headers: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """A response of any status. Network errors have readable messages."""
        host = urlsplit(url).hostname
        # Do not print the proxy: its URL may contain a password.
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
            raise InterruptedDownloadError(
                f"{host} broke off in the middle of a response"
            ) from error


@asynccontextmanager
async def open_web(environment: Mapping[str, str]) -> AsyncGenerator[Web]:
    """Open a session that gives up early on a dead host.

    aiohttp does not read the environment here: it would send passwords from ~/.netrc.
    """
    async with aiohttp.ClientSession(
        # Sizes and digests are those of the stored bytes, so no proxy may compress them.
        headers={"User-Agent": "capelin", "Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=60),
    ) as session:
        yield Web(session, environment)


async def download(
    open_response: OpenResponse,
    into: Path,
    *,
    digest: str,
    size: int,
    report: Callable[[int], None],
) -> None:
    """Download a file of known SHA-256 and size, and resume an earlier attempt.

    After a failure, the file keeps only bytes that may be a correct beginning.
    """
    for pause in (*PAUSES, None):
        try:
            await _resume(open_response, into, size, report)
            break
        except InterruptedDownloadError:
            if pause is None:
                raise
            await asyncio.sleep(pause)
    await asyncio.to_thread(_verify, into, digest, size)


async def _resume(
    open_response: OpenResponse, into: Path, size: int, report: Callable[[int], None]
) -> None:
    with into.open("ab") as file:
        done = file.tell()
        if done >= size:
            return
        async with open_response({"Range": f"bytes={done}-"} if done else {}) as response:
            if response.status != 206:
                # This server does not support ranges and sends the whole file.
                file.truncate(0)
                done = 0
            async for chunk in response.content.iter_chunked(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                report(done)
                if done > size:
                    return


def _verify(file: Path, digest: str, size: int) -> None:
    actual_size = file.stat().st_size
    with file.open("rb") as content:
        actual = hashlib.file_digest(content, "sha256").hexdigest()
    if (actual_size, actual) == (size, digest):
        return
    file.unlink()
    if actual_size != size:
        has = f"only {actual_size} of" if actual_size < size else "more than"
        raise SourceFailedError(f"a download is damaged: it has {has} {size} bytes")
    raise SourceFailedError(
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
