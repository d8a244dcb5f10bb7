"""A proxy between Cluster API and an extension that records their messages."""

import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web
from capelin.runtime import AnyHook
from capelin.runtime.messages import read_json
from capelin.runtime.v1alpha1 import CLUSTER_API


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call as bytes."""

    path: str
    request: bytes
    response: bytes

    @property
    def hook(self) -> AnyHook:
        name = self.path.split("/")[3]
        return next(hook for hook in CLUSTER_API if hook.id.name.lower() == name)

    def is_kept(self) -> bool:
        """Whether both messages are unchanged after a round trip through Capelin's types."""
        request = read_json(self.hook.request_type(), self.request)
        response = read_json(self.hook.response_type(), self.response)
        return request.dump() == json.loads(self.request) and response.dump() == json.loads(
            self.response
        )


class Recorder:
    """Passes every call on, unchanged."""

    def __init__(self, extension: str, folder: Path) -> None:
        self.exchanges: list[Exchange] = []
        self._extension = extension
        self._folder = folder

    @asynccontextmanager
    async def listening(self, host: str) -> AsyncGenerator[int]:
        """Listen with the extension's `tls.crt` and `tls.key`, and yield the port."""
        shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        shown.load_cert_chain(self._folder / "tls.crt", self._folder / "tls.key")
        trusted = ssl.create_default_context(cafile=self._folder / "ca.crt")
        connector = aiohttp.TCPConnector(ssl=trusted)
        async with aiohttp.ClientSession(self._extension, connector=connector) as session:

            async def pass_on(request: web.Request) -> web.Response:
                body = await request.read()
                # Cluster API sends no Content-Type, so the proxy does not either.
                call = session.post(request.path_qs, data=body, skip_auto_headers=["Content-Type"])
                async with call as answer:
                    content = await answer.read()
                self.exchanges.append(Exchange(request.path, body, content))
                return web.Response(body=content, status=answer.status)

            app = web.Application(client_max_size=0)
            app.router.add_post("/{path:.*}", pass_on)
            runner = web.AppRunner(app)
            await runner.setup()
            try:
                await web.TCPSite(runner, host, 0, ssl_context=shown).start()
                yield runner.addresses[0][1]
            finally:
                # Calls in flight need the session, so the runner stops first.
                await runner.cleanup()
