"""Answers in place of kubelets, which simulated Nodes do not have."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aiohttp import web
from capelin.pki import Leaf, new_ca
from capelin_embedded.addresses import free_address
from capelin_embedded.processes import private_folder, write_private

MESSAGE: Final = "simulated by Capelin: nothing runs here"
PORT: Final = 10250
_NAME: Final = "capelin-simulated-kubelet"


@dataclass(frozen=True, slots=True)
class KubeletEndpoint:
    """Where API servers of this machine reach the kubelet of every simulated Node."""

    address: str
    port: int = PORT


class SimulatedKubelet:
    """One server for all simulated Nodes: logs are one line, and nothing can be executed."""

    def __init__(self, state_folder: Path) -> None:
        self._state_folder = state_folder
        self.endpoint: KubeletEndpoint | None = None
        """None while it does not serve."""

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Serve for as long as the block lasts.

        The address follows from the state folder: Nodes keep the one that they were created with.
        """
        app = web.Application()
        app.router.add_get("/containerLogs/{pod:.*}", _logs)
        app.router.add_route("*", "/{path:.*}", _refusal)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            address = free_address(f"kubelet/{self._state_folder}", ports=(PORT,))
            context = _server_context(self._state_folder, address)
            await web.TCPSite(runner, address, PORT, ssl_context=context).start()
            self.endpoint = KubeletEndpoint(address)
            yield
        finally:
            self.endpoint = None
            await runner.cleanup()


async def _logs(request: web.Request) -> web.Response:
    del request
    return web.Response(text=f"{MESSAGE}\n")


async def _refusal(request: web.Request) -> web.Response:
    # From a response without an upgrade of the connection, API servers hand on only a Status.
    del request
    return web.json_response(
        {
            "apiVersion": "v1",
            "kind": "Status",
            "status": "Failure",
            "message": MESSAGE,
            "code": 501,
        },
        status=501,
    )


def _server_context(folder: Path, address: str) -> ssl.SSLContext:
    """A self-made certificate: API servers do not verify kubelets."""
    now = datetime.now(UTC)
    ca = new_ca(_NAME, now=now)
    pair = Leaf(common_name=_NAME, usages=("server",), addresses=(address,)).issue(ca, now=now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # The standard library reads certificates from files only.
    with TemporaryDirectory(dir=private_folder(folder)) as temporary:
        file = Path(temporary) / "server.pem"
        write_private(file, pair.certificate_pem + pair.private_key_pem)
        context.load_cert_chain(file)
    return context
