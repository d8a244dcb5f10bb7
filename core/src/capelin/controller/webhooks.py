"""Webhooks that a manager serves to the API server, in HTTPS."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from capelin.api import CONVERSION_PATH, VALIDATION_PATH, Unstructured
from capelin.body_budget import BodyBudget, OverloadedError
from capelin.controller.background import Background
from capelin.controller.options import Address
from capelin.controller.reviews import convert_review, validate_review
from capelin.controller.serving import serve
from capelin.controller.threads import Threads
from capelin.json_text import read_json
from capelin.tls import Certificates

MAX_BODY_BYTES: Final = 16 * 2**20
"""The largest review. One with a single object has at most some MiB."""
_AT_A_TIME: Final = 4
_READ_SECONDS: Final = 10.0


class Webhooks:
    """Serves the conversions and validations of all kinds in this process.

    Every replica serves them, whether it leads or not. Callers need no certificate: a review reads
    and changes nothing but the objects in the request.
    """

    def __init__(self, address: Address, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self._slots = asyncio.Semaphore(_AT_A_TIME)
        self._budget = BodyBudget(_AT_A_TIME * MAX_BODY_BYTES)
        self._threads = Threads("webhooks", _AT_A_TIME)
        self.bound: Address | None = None
        """The address, whose port the system may have chosen. None until `listen` returns."""

    async def listen(self, stack: AsyncExitStack, background: Background) -> None:
        """Serve until the stack closes.

        Raises:
            CertificateError: The folder has no certificate with its key.
            ListenError: The address is in use, or does not belong to this machine.
        """
        certificates = Certificates(self._folder)
        app = web.Application()
        app.router.add_post(CONVERSION_PATH, self._page(convert_review))
        app.router.add_post(VALIDATION_PATH, self._page(validate_review))
        context = certificates.context()
        stack.callback(self._threads.close)
        self.bound = await serve(stack, app, self._address, "--webhook-address", context)
        await stack.enter_async_context(background.running(certificates=certificates.follow))

    def _page(self, respond: Callable[[Any], Unstructured]) -> Handler:
        async def page(request: web.Request) -> web.Response:
            reader = _Reader(asyncio.timeout(_READ_SECONDS))
            try:
                async with reader.timeout:
                    body = await self._read(request, reader)
                # Slow callers hold no slot before their request is complete.
                async with self._slots:
                    response = await self._threads.call(lambda: respond(read_json(body)))
            except TimeoutError:
                return web.Response(status=408, text="the request did not arrive in time")
            except OverloadedError:
                return web.Response(status=503, text="other requests use all the memory")
            except (ValueError, AttributeError) as error:
                return web.Response(status=400, text=str(error))
            finally:
                self._budget.release(reader)
            return web.json_response(response)

        return page

    async def _read(self, request: web.Request, reader: "_Reader") -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, size)
            self._budget.take(reader, len(piece))
            pieces.append(piece)
        self._budget.complete(reader)
        return b"".join(pieces)


class _Reader:
    """A request whose body is read."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self.timeout = timeout

    def abort(self, error: type[Exception]) -> None:
        del error
        self.timeout.reschedule(asyncio.get_running_loop().time())
