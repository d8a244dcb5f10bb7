"""A pod's port at a port of this machine, through the API server like kubectl port-forward.

So the provider reaches etcd from inside and outside of the management cluster, and network policies
need no exception for it.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import aiohttp
from capelin.client import Config, Credentials

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
# The first message of each channel repeats the port.
_PORT_BYTES = 2
_BUFFER = 64 * 1024


@asynccontextmanager
async def forwarded_port(
    config: Config, namespace: str, pod: str, port: int
) -> AsyncGenerator[int]:
    """The port of the loopback address that leads to a pod's, as long as the block lasts."""
    proof = await Credentials(config).proof()
    server = config.server.address.rstrip("/")
    url = f"{server}/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}"
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=proof.tls or True), headers=list(proof.headers)
    ) as session:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(aiohttp.ClientError, OSError):
                async with session.ws_connect(url, protocols=(_PROTOCOL,)) as socket:
                    sending = asyncio.create_task(_send(reader, socket))
                    try:
                        await _receive(socket, writer)
                    finally:
                        sending.cancel()
                        await asyncio.gather(sending, return_exceptions=True)
            writer.close()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with listener:
            yield listener.sockets[0].getsockname()[1]


async def _send(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(_BUFFER):
        await socket.send_bytes(bytes([_DATA]) + data)


async def _receive(socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    skipped = {_DATA: _PORT_BYTES, _ERROR: _PORT_BYTES}
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            return
        channel, content = message.data[0], message.data[1:]
        skip = min(skipped.get(channel, 0), len(content))
        if skip:
            skipped[channel] -= skip
            content = content[skip:]
        if channel == _ERROR and content:
            return
        if channel == _DATA and content:
            writer.write(content)
            await writer.drain()
