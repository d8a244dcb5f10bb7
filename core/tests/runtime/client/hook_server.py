"""A TLS server with configurable responses."""

import json
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web
from capelin.api.capi import ExtensionClientConfig, ExtensionConfig, ExtensionConfigSpec
from capelin.pki import issue, new_ca

NOW = datetime.now(UTC)
CA = new_ca("calling", now=NOW)

Respond = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def answer(**fields: Any) -> web.Response:
    return web.Response(body=json.dumps(fields), content_type="text/plain")


class Server:
    """Records requests. Sends the response configured for the path, or success by default."""

    def __init__(self) -> None:
        self.requests: list[web.BaseRequest] = []
        self.bodies: list[dict[str, Any]] = []
        self.responses: dict[str, Respond | dict[str, Any]] = {}
        self.port = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(json.loads(await request.read()))
        response = self.responses.get(request.path, {"status": "Success"})
        return answer(**response) if isinstance(response, dict) else await response(request)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def config(self, name: str = "ext", **spec: Any) -> ExtensionConfig:
        config = ExtensionConfig.of(name)
        config.spec = ExtensionConfigSpec(
            client_config=ExtensionClientConfig(url=self.url, ca_bundle=CA.certificate_pem),
            **spec,
        )
        return config


def credentials(folder: Path, *, names: tuple[str, ...] = ()) -> Path:
    """A certificate and key for this machine or for the given names."""
    folder.mkdir(exist_ok=True)
    pair = issue(
        CA,
        common_name="calling",
        usages=["server", "client"],
        addresses=[] if names else ["127.0.0.1"],
        dns_names=names,
        now=NOW,
    )
    (folder / "tls.crt").write_bytes(pair.certificate_pem)
    (folder / "tls.key").write_bytes(pair.private_key_pem)
    return folder


def server_context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def bound() -> socket.socket:
    """A reserved port of this machine that does not accept connections."""
    port = socket.socket()
    port.bind(("127.0.0.1", 0))
    return port


@asynccontextmanager
async def listening(
    respond: Respond, context: ssl.SSLContext, at: socket.socket | None = None
) -> AsyncGenerator[int]:
    """Serves requests and yields the port."""
    runner = web.ServerRunner(web.Server(respond), shutdown_timeout=0.1)
    await runner.setup()
    site = web.SockSite(runner, at or bound(), ssl_context=context)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()
