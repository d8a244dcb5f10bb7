"""A server of a manager on one address."""

import ssl
from contextlib import AsyncExitStack

from aiohttp import web

from capelin.controller.options import Address


class ListenError(Exception):
    """An address is in use or not available."""


async def serve(
    stack: AsyncExitStack,
    app: web.Application,
    address: Address,
    flag: str,
    context: ssl.SSLContext | None,
) -> Address:
    """Serve until the stack closes. Returns the address, whose port the system may have chosen.

    Raises:
        ListenError: The address is in use, or does not belong to this machine. It names the flag.
    """
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, address.host or None, address.port, ssl_context=context).start()
    except OSError as error:
        raise ListenError(
            f"cannot listen on {address} ({error.strerror}): "
            f"give another address with {flag}, or 0 for none"
        ) from None
    host, port = runner.addresses[0][:2]
    return Address(host, port)
