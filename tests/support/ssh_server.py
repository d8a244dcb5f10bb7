"""asyncssh's server. It runs commands as this user on this machine, without sshd and root."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import asyncssh

from tests.support.sshd import Server, new_key

KILLS_CONNECTION = "kill this connection"
"""The command that ends the connection without an answer."""


@asynccontextmanager
async def ssh_server(
    *, certified: bool = False, compression: str = "none"
) -> AsyncGenerator[Server]:
    """Serve SSH. With `certified`, the host key has a certificate for the address."""
    host, ca, user = new_key(), new_key(), new_key()
    address = "127.0.0.1"
    certificate = ca.generate_host_certificate(host, "host", principals=[address])
    connections: list[asyncssh.SSHServerConnection] = []
    running: set[asyncio.Task[None]] = set()

    def start(process: asyncssh.SSHServerProcess[bytes]) -> None:
        task = asyncio.create_task(run(process))
        running.add(task)
        task.add_done_callback(running.discard)

    async def run(process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command or "true"
        if KILLS_CONNECTION in command:
            process.get_extra_info("connection").abort()
            return
        child = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", command), stdin=PIPE, stdout=PIPE, stderr=PIPE, process_group=0
        )
        assert child.stdin and child.stdout and child.stderr  # noqa: PT018
        closed = asyncio.create_task(process.wait_closed())
        feeding = asyncio.create_task(_copy(process.stdin, child.stdin))
        forwarding = asyncio.gather(
            _copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr)
        )
        try:
            await asyncio.wait((closed, forwarding), return_when=asyncio.FIRST_COMPLETED)
            if not closed.done():
                process.exit(await child.wait())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            for task in (feeding, closed, forwarding):
                task.cancel()
            await asyncio.gather(feeding, closed, forwarding, return_exceptions=True)
            # A transport whose reader is full stays open until the rest was read.
            await child.communicate()

    class Accepting(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            connections.append(conn)
            server.connections += 1

        def connection_requested(
            self,
            dest_host: str,  # noqa: ARG002
            dest_port: int,  # noqa: ARG002
            orig_host: str,  # noqa: ARG002
            orig_port: int,  # noqa: ARG002
        ) -> bool:
            return True

    acceptor = await asyncssh.listen(
        address,
        0,
        server_factory=Accepting,
        server_host_keys=[(host, certificate)] if certified else [host],
        authorized_client_keys=asyncssh.import_authorized_keys(user.export_public_key().decode()),
        process_factory=start,
        compression_algs=[compression],
        encoding=None,
    )
    server = Server(
        address=address,
        port=acceptor.get_port(),
        host_key=host.export_public_key().decode(),
        ca=ca.export_public_key().decode(),
        user_key=user.export_private_key().decode(),
    )
    try:
        yield server
    finally:
        acceptor.close()
        for connection in connections:
            connection.abort()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _copy(
    source: asyncssh.SSHReader[bytes] | asyncio.StreamReader,
    target: asyncssh.SSHWriter[bytes] | asyncio.StreamWriter,
) -> None:
    """Copy until the source ends or the target no longer reads."""
    with suppress(ConnectionError, asyncssh.Error):
        while content := await source.read(1 << 16):
            target.write(content)
            await target.drain()
    if isinstance(target, asyncio.StreamWriter):
        target.close()
