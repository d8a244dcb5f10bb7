"""Ways to ask a process whether it is ready."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp

_SECONDS_FOR_AN_ANSWER = 5.0


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
    """
    trust = True if ca is None else ssl.create_default_context(cafile=ca)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trust, limit=1),
        timeout=aiohttp.ClientTimeout(total=within),
    ) as session:
        while True:
            try:
                async with session.get(url) as response:
                    text = await response.text()
                    broken = response.status >= 500
                    yield failing_checks(response.status, text) if broken else ""
            except TimeoutError:
                yield f"{url} did not answer for {within:g} s"
            except aiohttp.ClientError:
                yield f"{url} does not answer"


def failing_checks(status: int, text: str) -> str:
    """What a health endpoint complains about."""
    failing = [
        line.removeprefix("[-]").split()[0] for line in text.splitlines() if line.startswith("[-]")
    ]
    return f"not yet: {', '.join(failing)}" if failing else f"it answers {status}"
