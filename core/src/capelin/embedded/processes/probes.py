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


def failing_checks(status: int, text: str) -> str:
    """What a health endpoint complains about."""
    failing = [
        line.removeprefix("[-]").split()[0] for line in text.splitlines() if line.startswith("[-]")
    ]
    return f"not yet: {', '.join(failing)}" if failing else f"it answers {status}"
