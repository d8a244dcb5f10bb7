"""OpenSSH's server on a machine in namespaces, reached through a port of this machine."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import asyncssh
from capelin.testing.waiting import until
from capelin_embedded.addresses import free_port, is_listening
from capelin_machine_pool.bootstrap.ssh import SshHost

from tests.support.sandbox import Sandbox

SSHD = "/usr/sbin/sshd"
_CONFIG = """\
HostKey /etc/ssh/test/host
{certificate}
AuthorizedKeysFile /etc/ssh/test/authorized
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
MaxSessions 20
PidFile none
"""


@dataclass
class Server:
    """The server, and its faults."""

    address: str
    port: int
    host_key: str
    ca: str
    user_key: str = field(repr=False)
    cut_after: int | None = None
    """Bytes from the client after which each connection is cut."""
    delay: float = 0.0
    """Seconds that each packet of the client takes."""
    silent: bool = False
    """Whether each connection ends at once."""
    connections: int = 0

    def host(self) -> SshHost:
        return SshHost(
            address=self.address,
            port=self.port,
            private_key=self.user_key,
            host_keys=(self.host_key,),
        )


def new_key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519")  # pyright: ignore[reportUnknownMemberType]


@asynccontextmanager
async def sshd(
    machine: Sandbox, *, certified: bool = False, user: asyncssh.SSHKey | None = None
) -> AsyncGenerator[Server]:
    """Serve SSH. With `certified`, the host key has a certificate for the address."""
    host, ca = new_key(), new_key()
    user = user or new_key()
    address = "127.0.0.1"
    certificate = ca.generate_host_certificate(host, "host", principals=[address])
    line = "HostCertificate /etc/ssh/test/host-cert.pub" if certified else ""
    files = {
        "host": host.export_private_key(),
        "host-cert.pub": certificate.export_certificate(),
        "authorized": user.export_public_key(),
        "config": _CONFIG.format(certificate=line).encode(),
    }
    for name, content in files.items():
        await machine.write_file(f"/etc/ssh/test/{name}", content)
    await machine.succeed("mkdir -p /run/sshd; getent passwd sshd || useradd -r sshd")
    command = machine.command(SSHD, "-i", "-f", "/etc/ssh/test/config")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        if server.silent:
            writer.close()
            return
        ours, theirs = socket.socketpair()
        process = await asyncio.create_subprocess_exec(
            *command, stdin=theirs.fileno(), stdout=theirs.fileno()
        )
        theirs.close()
        inner_reader, inner_writer = await asyncio.open_connection(sock=ours)
        pumps = [
            asyncio.create_task(_pump(reader, inner_writer, server.cut_after, server.delay)),
            asyncio.create_task(_pump(inner_reader, writer, None)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for each in (writer, inner_writer):
                each.close()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    listener = await asyncio.start_server(serve, address, 0)
    port = listener.sockets[0].getsockname()[1]
    server = Server(
        address=address,
        port=port,
        host_key=host.export_public_key().decode(),
        ca=ca.export_public_key().decode(),
        user_key=user.export_private_key().decode(),
    )
    try:
        yield server
    finally:
        listener.close()


@asynccontextmanager
async def bastion(machine: Sandbox, server: Server) -> AsyncGenerator[SshHost]:
    """Run a server with OpenSSH's own limits, which forwards connections to ports of this machine.

    Args:
        machine: The machine whose files it uses.
        server: The other server of that machine, with the same keys.
    """
    host = replace(server.host(), port=free_port(server.address))
    listen = ("-p", str(host.port), "-o", f"ListenAddress={host.address}")
    command = machine.command(SSHD, "-D", "-f", "/etc/ssh/test/config", *listen, network=False)
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    try:
        await until(lambda: is_listening(host.address, host.port))
        yield host
    finally:
        process.kill()
        await process.wait()


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    limit: int | None,
    delay: float = 0.0,
) -> None:
    left = limit
    with suppress(ConnectionError):
        while content := await reader.read(4096 if left is None else max(1, min(left, 4096))):
            if left == 0:
                return
            await asyncio.sleep(delay)
            writer.write(content)
            await writer.drain()
            left = None if left is None else left - len(content)
