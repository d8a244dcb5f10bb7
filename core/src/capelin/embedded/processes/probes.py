"""Ways to ask a process whether it is ready."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from functools import lru_cache
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import aiohttp

from capelin.embedded.processes.streams import Stream, connect

_SECONDS_FOR_AN_ANSWER = 5.0
_LONGEST_ANSWER = 64 * 1024


async def listening(address: str, port: int) -> AsyncGenerator[str, None]:
    """Ready when it accepts connections."""
    while True:
        try:
            _, writer = await asyncio.open_connection(address, port)
        except OSError:
            yield f"nothing listens on {address}:{port}"
        else:
            writer.close()
            yield ""


async def answering(
    url: str, *, ca: Path, certificate: Path, key: Path
) -> AsyncGenerator[str, None]:
    """Ready when it answers 200 over HTTPS. A Kubernetes part says which of its checks fail."""
    trust = ssl.create_default_context(cafile=ca)
    trust.load_cert_chain(certificate, key)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trust),
        timeout=aiohttp.ClientTimeout(total=_SECONDS_FOR_AN_ANSWER),
    ) as session:
        while True:
            try:
                async with session.get(url) as response:
                    text = await response.text()
                    yield "" if response.status == 200 else failing_checks(response.status, text)
            except TimeoutError:
                yield f"{url} does not answer in time"
            except aiohttp.ClientError:
                yield f"{url} does not answer"


async def alive(
    url: str, *, ca: Path | None = None, within: float = _SECONDS_FOR_AN_ANSWER
) -> AsyncGenerator[str, None]:
    """Alive when it says anything but that it is broken.

    It does without a certificate to show, which would end one day: who is refused was answered.
    It is asked for as long as a process lives, so it does without an HTTP client, too, which takes
    twice the time.
    """
    async with _Line(url, _trusting(ca)) as line:
        while True:
            try:
                async with asyncio.timeout(within):
                    status, text = await line.ask()
            except TimeoutError:
                line.hang_up()
                yield f"{url} did not answer for {within:g} s"
            except (OSError, EOFError, ValueError):
                line.hang_up()
                yield f"{url} does not answer"
            else:
                yield failing_checks(status, text) if status >= 500 else ""


class _Line:
    """A connection for one question, asked again and again."""

    def __init__(self, url: str, trust: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._trust = parts.hostname or "", parts.port or 443, trust
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        self._question = f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
        self._stream: Stream | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.hang_up()

    async def ask(self) -> tuple[int, str]:
        """The status and the text of the answer; EOFError or ValueError if it is none."""
        if self._stream is None:
            self._stream = await connect(self._host, self._port, self._trust, limit=_LONGEST_ANSWER)
        stream = self._stream
        await stream.write(self._question)
        head = (await stream.read_until(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        length = headers.get("content-length")
        text = b"" if length is None else await stream.read_exactly(int(length))
        if length is None or headers.get("connection") == "close":
            self.hang_up()
        return int(head[0].partition(" ")[2][:3]), text.decode(errors="replace")

    def hang_up(self) -> None:
        """Ask over another connection next time."""
        if self._stream is not None:
            self._stream.abort()
            self._stream = None


def _trusting(ca: Path | None) -> ssl.SSLContext | None:
    return None if ca is None else _trust(ca, ca.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _trust(ca: Path, _: int) -> ssl.SSLContext:
    """Shared by those who ask; the time of the file's last change tells old authorities apart."""
    return ssl.create_default_context(cafile=ca)


def failing_checks(status: int, text: str) -> str:
    """What a health endpoint complains about."""
    failing = [
        line.removeprefix("[-]").split()[0] for line in text.splitlines() if line.startswith("[-]")
    ]
    return f"not yet: {', '.join(failing)}" if failing else f"it answers {status}"
