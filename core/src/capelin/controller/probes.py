"""The manager's own HTTP pages: /healthz, /readyz and /metrics."""

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from capelin.controller.options import Address

Check = Callable[[], str | None]
"""What is wrong, in a sentence; `None` when all is well."""


class ListenError(Exception):
    """An address to listen on that cannot be had."""


class Probes:
    """Serves the pages of a manager for as long as the block lasts."""

    def __init__(self, *, health: Check, ready: Check, metrics: CollectorRegistry) -> None:
        self._health = health
        self._ready = ready
        self._metrics = metrics
        self._stack = AsyncExitStack()
        self.bound: dict[str, Address] = {}
        """Where the pages are, by flag; of use when the port was left to the system."""

    async def listen(self, *, health: Address | None, metrics: Address | None) -> None:
        """Start to serve; the same address twice is one server with all pages.

        Raises:
            ListenError: an address is in use, or not one of this machine.
        """
        pages = {"--health-address": health, "--metrics-address": metrics}
        if health is not None and health == metrics:
            await self._serve(health, pages)
            return
        for flag, address in pages.items():
            if address is not None:
                await self._serve(address, [flag])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _serve(self, address: Address, flags: Iterable[str]) -> None:
        app = web.Application()
        for flag in flags:
            if flag == "--health-address":
                app.router.add_get("/healthz", self._page(self._health))
                app.router.add_get("/readyz", self._page(self._ready))
            else:
                app.router.add_get("/metrics", self._numbers)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        try:
            await web.TCPSite(runner, address.host or None, address.port).start()
        except OSError as error:
            first = next(iter(flags))
            raise ListenError(
                f"cannot listen on {address} ({error.strerror}): "
                f"give another address with {first}, or 0 for none"
            ) from None
        host, port = runner.addresses[0][:2]
        for flag in flags:
            self.bound[flag] = Address(host, port)

    def _page(self, check: Check) -> Handler:
        async def answer(_: web.Request) -> web.Response:
            problem = check()
            return web.Response(text=problem or "ok", status=503 if problem else 200)

        return answer

    async def _numbers(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._metrics), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        )
