"""The transport over SSH. The host key is always verified."""

import asyncio
import os
import shlex
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import asyncssh
from capelin.client import AddressRefusedError, Destinations

from capelin_machine_pool.bootstrap.transport import (
    MAX_OUTPUT_BYTES,
    CommandResult,
    Transport,
    TransportError,
)

_CONNECT_SECONDS: Final = 10.0
_LOGIN_SECONDS: Final = 20.0
_KEEPALIVE_SECONDS: Final = 15.0
_CHUNK: Final = 64 * 1024
_LONGEST_REASON: Final = 200
_LONGEST_KEY: Final = 8 << 10
"""In characters. An RSA key of 8,192 bits fits."""


class InvalidKeyError(ValueError):
    """A key that cannot be read. The message does not contain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHost:
    """A machine and the credentials for it.

    Raises:
        InvalidKeyError: It has no host key and no host CA, or a key is unreadable.
    """

    address: str
    """A name or an IP address."""
    port: int = 22
    user: str = "root"
    """A user other than root needs `sudo` without a password."""
    private_key: str = field(repr=False)
    """The user's key without a passphrase, as `ssh-keygen` writes it."""
    host_keys: tuple[str, ...] = ()
    """The host's public keys, such as `ssh-ed25519 AAAA...`."""
    host_cas: tuple[str, ...] = ()
    """Public keys of CAs. A host needs a certificate of one of them for its address."""

    def __post_init__(self) -> None:
        if not self.host_keys and not self.host_cas:
            raise InvalidKeyError(f"{self.address} has neither a host key nor a host CA")
        _private_key(self.private_key)
        for key in (*self.host_keys, *self.host_cas):
            _public_key(key)


class SshTransport(Transport):
    """Runs commands over an SSH connection. `connect_ssh` makes one."""

    def __init__(self, connection: asyncssh.SSHClientConnection, host: SshHost) -> None:
        self._connection = connection
        self._host = host

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_seconds: float = 30,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> CommandResult:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._run(as_root(self._host.user, command), stdin, max_output)
        except TimeoutError:
            raise TransportError(f"a command takes longer than {timeout_seconds:.0f} s") from None
        except asyncssh.Error as error:
            raise _failure(error, self._host) from error
        except OSError as error:
            # It could connect: a write failed before the end of the connection was noticed.
            raise _failure(asyncssh.ConnectionLost(str(error)), self._host) from error

    async def _run(self, command: str, stdin: bytes, max_output: int) -> CommandResult:
        process = await self._connection.create_process(command, encoding=None)
        try:
            feeding = asyncio.create_task(_feed(process.stdin, stdin))
            errors_read = asyncio.create_task(_read(process.stderr, MAX_OUTPUT_BYTES))
            try:
                output = await _read(process.stdout, max_output)
                errors = await errors_read
            finally:
                feeding.cancel()
                errors_read.cancel()
                await asyncio.gather(feeding, errors_read, return_exceptions=True)
            await process.wait_closed()
        finally:
            process.close()
        if process.returncode is None:
            raise TransportError("the connection ended before the command did")
        return CommandResult(process.returncode, output, errors)


def as_root(user: str, command: str) -> str:
    """The command line that runs a shell command as root, after the login as a user."""
    as_script = shlex.join(["/bin/sh", "-c", command])
    return as_script if user == "root" else f"sudo -n -- {as_script}"


@asynccontextmanager
async def connect_ssh(
    host: SshHost, destinations: Destinations | None, bastion: SshHost | None = None
) -> AsyncGenerator[SshTransport]:
    """Connect to a machine, directly or through a bastion.

    Args:
        host: The machine.
        destinations: Addresses that are allowed after name resolution. None allows all. The
            bastion resolves the name of a machine behind it.
        bastion: A machine that forwards connections.

    Raises:
        TransportError: It does not answer, has another host key, or rejects the user.
    """
    async with AsyncExitStack() as stack:
        if bastion is None:
            connection = await stack.enter_async_context(_connected(host, destinations))
        else:
            if destinations is not None and not destinations.allows_host(host.address):
                raise _failure(AddressRefusedError(), host)
            tunnel = await stack.enter_async_context(_connected(bastion, destinations))
            connection = await stack.enter_async_context(_connected(host, None, tunnel))
        yield SshTransport(connection, host)


async def read_host_key(address: str, port: int, destinations: Destinations | None) -> str:
    """The key that a machine shows at this moment, to trust it on first use.

    Raises:
        TransportError: It does not answer.
    """
    opened: socket.socket | None = None
    where = f"{address}:{port}"
    try:
        async with asyncio.timeout(_CONNECT_SECONDS + _LOGIN_SECONDS):
            opened = await _socket(address, port, destinations)
            key = await asyncssh.get_server_host_key(address, port, sock=opened, config=None)
    except TimeoutError:
        raise TransportError(f"{where} does not answer in time") from None
    except (asyncssh.Error, OSError) as error:
        raise TransportError(f"cannot read the host key of {where}: {_detail(error)}") from error
    finally:
        _close(opened)
    if key is None:
        raise TransportError(f"{where} shows no host key")
    return " ".join(key.export_public_key().decode().split()[:2])


@asynccontextmanager
async def _connected(
    host: SshHost,
    destinations: Destinations | None,
    tunnel: asyncssh.SSHClientConnection | None = None,
) -> AsyncGenerator[asyncssh.SSHClientConnection]:
    opened: socket.socket | None = None
    try:
        async with asyncio.timeout(_CONNECT_SECONDS + _LOGIN_SECONDS):
            if tunnel is None:
                opened = await _socket(host.address, host.port, destinations)
            connection = await asyncssh.connect(
                host.address,
                host.port,
                sock=opened,
                tunnel=tunnel or (),
                options=_options(host),
            )
    except TimeoutError:
        _close(opened)
        raise TransportError(f"{host.address}:{host.port} does not answer in time") from None
    except (asyncssh.Error, OSError) as error:
        _close(opened)
        raise _failure(error, host) from error
    except asyncio.CancelledError:
        _close(opened)
        raise
    try:
        yield connection
    finally:
        connection.close()
        with suppress(TimeoutError, asyncssh.Error, OSError):
            async with asyncio.timeout(2):
                await connection.wait_closed()
        connection.abort()


def _options(host: SshHost) -> asyncssh.SSHClientConnectionOptions:
    """Settings that come from nowhere else: no configuration file, agent or key of this machine."""
    host_keys = [_public_key(key) for key in host.host_keys]
    host_cas = [_public_key(key) for key in host.host_cas]
    revoked: list[asyncssh.SSHKey] = []
    return asyncssh.SSHClientConnectionOptions(
        config=None,
        known_hosts=(host_keys, host_cas, revoked),
        username=host.user,
        client_keys=[_private_key(host.private_key)],
        agent_path=None,
        # asyncssh unpacks a packet without a limit.
        compression_algs=["none"],
        gss_host=None,
        preferred_auth=("publickey",),
        disable_trivial_auth=True,
        connect_timeout=_CONNECT_SECONDS,
        login_timeout=_LOGIN_SECONDS,
        keepalive_interval=_KEEPALIVE_SECONDS,
        keepalive_count_max=3,
    )


async def _socket(address: str, port: int, destinations: Destinations | None) -> socket.socket:
    """A connected socket. The address is checked right before the connection."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for info in found[:4]:
        if destinations is not None and not destinations.allows(str(info[4][0])):
            raise AddressRefusedError
        opened = socket.socket(*info[:3])
        opened.setblocking(False)  # noqa: FBT003 - it has no keyword
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await loop.sock_connect(opened, info[4])
        except OSError as error:
            opened.close()
            failure = error
        except asyncio.CancelledError:
            opened.close()
            raise
        else:
            return opened
    raise failure or OSError("the name has no address")


async def _feed(writer: asyncssh.SSHWriter[bytes], content: bytes) -> None:
    # The command may end without reading its input.
    with suppress(BrokenPipeError, ConnectionError, asyncssh.Error):
        for start in range(0, len(content), _CHUNK):
            writer.write(content[start : start + _CHUNK])
            await writer.drain()
        writer.write_eof()


async def _read(reader: asyncssh.SSHReader[bytes], limit: int) -> bytes:
    content = bytearray()
    while chunk := await reader.read(_CHUNK):
        content += chunk
        if len(content) > limit:
            raise TransportError(f"a command prints more than {limit} bytes", "command")
    return bytes(content)


def _failure(error: Exception, host: SshHost) -> TransportError:
    """A failure, in the same words every time."""
    where = f"{host.address}:{host.port}"
    match error:
        case asyncssh.HostKeyNotVerifiable():
            message = f"the host key of {where} is not the configured one"
            return TransportError(message, "host key")
        case asyncssh.PermissionDenied():
            message = f"{where} rejects the user {host.user} with this key"
            return TransportError(message, "login")
        case asyncssh.ConnectionLost():
            return TransportError(f"the connection to {where} ended")
        case asyncssh.Error():
            return TransportError(f"{where}: {error.reason[:_LONGEST_REASON]}")
        case _:
            return TransportError(f"cannot connect to {where}: {_detail(error)}")


def _detail(error: Exception) -> str:
    if isinstance(error, AddressRefusedError | socket.gaierror):
        return str(error.strerror)
    if isinstance(error, OSError) and error.errno is not None:
        # asyncio's own text contains the address.
        return os.strerror(error.errno)
    return type(error).__name__


def _private_key(text: str) -> asyncssh.SSHKey:
    unreadable = InvalidKeyError(
        "the private key cannot be read: it needs the format of ssh-keygen, no passphrase, and at"
        " most 8,192 bits"
    )
    if len(text) > _LONGEST_KEY:
        raise unreadable
    try:
        # Its test for primes takes minutes for a long RSA key. A bad key only fails to log in.
        return asyncssh.import_private_key(text, unsafe_skip_rsa_key_validation=True)
    except (asyncssh.KeyImportError, ValueError):
        raise unreadable from None


def _public_key(text: str) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_public_key(text)
    except (asyncssh.KeyImportError, ValueError):
        raise InvalidKeyError("a host key or CA is not an OpenSSH public key") from None


def _close(opened: socket.socket | None) -> None:
    if opened is not None:
        opened.close()
