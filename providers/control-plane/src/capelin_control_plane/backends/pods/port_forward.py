"""A pod's port at a port of this machine, through the API server like kubectl port-forward.

So the provider reaches etcd from inside and outside of the management cluster, and network policies
need no exception for it.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager

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

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with session.ws_connect(url, protocols=(_PROTOCOL,)) as socket:
                    await _first_to_end(_send(reader, socket), _receive(socket, writer))
            except (aiohttp.ClientError, OSError):
                pass
            finally:
                writer.close()

        connections: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = asyncio.create_task(forward(reader, writer))
            connections.add(connection)
            connection.add_done_callback(connections.discard)

        listener = await asyncio.start_server(accept, "127.0.0.1", 0)
        # Since Python 3.12, the end of this block waits for all connections.
        async with listener:
            try:
                yield listener.sockets[0].getsockname()[1]
            finally:
                listener.close()
                await _cancel(connections)


async def _first_to_end(*directions: Coroutine[None, None, None]) -> None:
    """Run both directions of a connection until one of them ends, which ends the other."""
    tasks = {asyncio.create_task(direction) for direction in directions}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _cancel(tasks)


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
