"""A client of the Docker Engine API over its Unix socket. Podman serves the same API."""

import asyncio
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, cast

import aiohttp

SOCKETS: Final = ("/var/run/docker.sock", "/run/podman/podman.sock")
"""Where the engines listen, unless `DOCKER_HOST` names another socket."""
PROVIDER_LABEL: Final = "capelin.cluster.x-k8s.io/provider"
"""Label with the state folder of the provider that created a container."""
_TIMEOUT_SECONDS: Final = 60.0
_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
_CHUNK: Final = 32 * 1024
_SHOWN: Final = 300
_STDOUT, _STDERR = 1, 2
_POLLS: Final = 50
"""How often to ask for the exit code of a command whose output has ended."""


class EngineError(Exception):
    """The engine does not answer, or rejects a request. The request may have been carried out."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Observed state of a container."""

    id: str
    state: str
    """`created`, `running`, `paused`, `restarting`, `removing`, `exited` or `dead`."""
    exit_code: int = 0
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """The end of a command in a container."""

    exit_code: int
    output: bytes
    errors: bytes


def socket_of(environ: Mapping[str, str]) -> str:
    """The socket of the engine of this machine. `DOCKER_HOST` may name a socket only."""
    if host := environ.get("DOCKER_HOST", ""):
        return host.removeprefix("unix://")
    return next((path for path in SOCKETS if Path(path).exists()), SOCKETS[0])


class Engine:
    """A container engine. It keeps no connection between two requests."""

    def __init__(self, socket: str) -> None:
        self.socket = socket

    async def version(self) -> str:
        """The name and the version of the engine."""
        found = await self._json("GET", "/version")
        components: Sequence[Mapping[str, str]] | None = found.get("Components")
        name = components[0].get("Name", "") if components else ""
        return f"{name} {found['Version']}".strip()

    async def create(self, body: Mapping[str, Any], name: str | None = None) -> str:
        """Create a container without starting it, and return its id. The engine may name it."""
        query = None if name is None else {"name": name}
        return str((await self._json("POST", "/containers/create", query, body))["Id"])

    async def start(self, container: str) -> None:
        """Start a container. One that runs already stays as it is."""
        await self._request("POST", f"/containers/{container}/start")

    async def pause(self, container: str, *, on: bool) -> None:
        """Stop all processes of a container for a while, or have them continue."""
        await self._request("POST", f"/containers/{container}/{'pause' if on else 'unpause'}")

    async def find(self, name: str) -> Container | None:
        """A container by its name or id."""
        found = await self._found(f"/containers/{name}/json")
        if found is None:
            return None
        state: Mapping[str, Any] = found["State"]
        labels: Mapping[str, str] | None = found["Config"].get("Labels")
        networks: Mapping[str, Any] | None = found["NetworkSettings"].get("Networks")
        addresses = [network.get("IPAddress") for network in (networks or {}).values()]
        return Container(
            id=found["Id"],
            state=state["Status"],
            exit_code=state.get("ExitCode", 0),
            labels=labels or {},
            addresses=tuple(filter(None, addresses)),
        )

    async def remove(self, container: str) -> None:
        """Kill and remove a container with its volumes. It may be gone already."""
        try:
            query = {"force": "true", "v": "true"}
            await self._request("DELETE", f"/containers/{container}", query)
        except EngineError as error:
            # A conflict is a removal that another request has begun.
            if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                raise

    async def labelled(self, label: str) -> dict[str, str]:
        """The containers with a label, including stopped ones: its value by their ids."""
        filters = json.dumps({"label": [label]})
        found = await self._json("GET", "/containers/json", {"all": "true", "filters": filters})
        return {container["Id"]: container["Labels"][label] for container in found}

    async def has_image(self, reference: str) -> bool:
        """Whether the engine has an image."""
        return await self._found(f"/images/{reference}/json") is not None

    async def pull(self, reference: str, *, seconds: float) -> None:
        """Pull an image from its registry."""
        has_tag = ":" in reference.rpartition("/")[2]
        # Without a tag, the engine would pull all of them.
        query = {"fromImage": reference} | ({} if has_tag else {"tag": "latest"})
        lines = await self._request("POST", "/images/create", query, seconds=seconds)
        # The request succeeds before the download: only its messages tell the result.
        for line in lines.splitlines():
            if message := json.loads(line).get("error"):
                raise EngineError(str(message)[:_SHOWN])

    async def gateway(self, network: str) -> str | None:
        """The IPv4 address of this machine in a network, if the network exists and has one."""
        found = await self._found(f"/networks/{network}")
        return None if found is None else gateway_of(found["IPAM"].get("Config") or [])

    async def read_files(self, container: str, folder: str) -> dict[str, bytes]:
        """The files of a folder of a container, which need not run, by their names."""
        archive = await self._request("GET", f"/containers/{container}/archive", {"path": folder})
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            return {
                Path(member.name).name: extracted.read()
                for member in opened.getmembers()
                if member.isfile() and (extracted := opened.extractfile(member)) is not None
            }

    async def execute(
        self, container: str, command: Sequence[str], stdin: bytes, *, max_output: int
    ) -> Output:
        """Run a command as root in a container, and wait for its end."""
        created = await self._json(
            "POST",
            f"/containers/{container}/exec",
            body={
                "User": "0:0",
                "Cmd": [*command],
                "AttachStdin": True,
                "AttachStdout": True,
                "AttachStderr": True,
            },
        )
        run = f"/exec/{created['Id']}"
        try:
            output = await self._attached(f"{run}/start", stdin, max_output)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise EngineError(f"the connection to {self.socket} ended") from error
        for _ in range(_POLLS):
            ended = await self._json("GET", f"{run}/json")
            if not ended["Running"]:
                return Output(int(ended["ExitCode"] or 0), output[_STDOUT], output[_STDERR])
            await asyncio.sleep(0.1)
        raise EngineError("a command closed its output and did not end")

    async def _attached(self, path: str, stdin: bytes, limit: int) -> Mapping[int, bytes]:
        """The two outputs of a command. The connection is the command's input and output."""
        reader, writer = await asyncio.open_unix_connection(self.socket, limit=_MAX_HEAD_BYTES)
        try:
            body = b'{"Detach": false, "Tty": false}'
            head = (
                f"POST {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
                f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            status = int((await reader.readuntil(b"\r\n\r\n")).split(maxsplit=2)[1])
            if status not in {HTTPStatus.SWITCHING_PROTOCOLS, HTTPStatus.OK}:
                raise EngineError(f"the engine does not run the command (status {status})", status)
            feeding = asyncio.create_task(_feed(writer, stdin))
            try:
                return await read_frames(reader, limit)
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        finally:
            writer.close()

    async def _found(self, path: str) -> Any | None:
        """An object of the engine. None if it does not exist."""
        try:
            return await self._json("GET", path)
        except EngineError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        return json.loads(await self._request(method, path, query, body))

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float = _TIMEOUT_SECONDS,
    ) -> bytes:
        connector = aiohttp.UnixConnector(self.socket)
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.request(
                    method, f"http://engine{path}", params=query, json=body
                ) as response,
            ):
                content = await response.read()
        except TimeoutError:
            raise EngineError(f"the engine at {self.socket} does not answer in time") from None
        except (aiohttp.ClientError, OSError) as error:
            errno = error.errno if isinstance(error, OSError) else None
            detail = os.strerror(errno) if errno else type(error).__name__
            message = f"no container engine answers at {self.socket}: {detail}"
            raise EngineError(message) from error
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise EngineError(_message_of(content, response.status), response.status)
        return content


def gateway_of(configs: Sequence[Mapping[str, str]]) -> str | None:
    """The IPv4 gateway of a network.

    Docker may leave out that of its default network. It is the first address there.
    """
    for config in configs:
        network = ip_network(config["Subnet"])
        if network.version == 4:
            return config.get("Gateway") or str(next(network.hosts()))
    return None


async def read_frames(reader: asyncio.StreamReader, limit: int) -> Mapping[int, bytes]:
    """The outputs of a command by their numbers, from the frames in which an engine sends them.

    Raises:
        EngineError: An output is longer than the limit, or is not in frames.
    """
    outputs = {_STDOUT: bytearray(), _STDERR: bytearray()}
    while True:
        try:
            header = await reader.readexactly(8)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return {number: bytes(output) for number, output in outputs.items()}
        output, size = outputs.get(header[0]), int.from_bytes(header[4:])
        if output is None or header[1:4] != b"\0\0\0" or size > _MAX_FRAME_BYTES:
            raise EngineError("the engine sends no frames")
        if len(output) + size > limit:
            raise EngineError(f"a command prints more than {limit} bytes")
        output += await reader.readexactly(size)


async def _feed(writer: asyncio.StreamWriter, content: bytes) -> None:
    # The command may end without reading its input.
    with suppress(OSError):
        for start in range(0, len(content), _CHUNK):
            writer.write(content[start : start + _CHUNK])
            await writer.drain()
        writer.write_eof()


def _message_of(content: bytes, status: int) -> str:
    try:
        message = cast("Mapping[str, object]", json.loads(content)).get("message")
    except (ValueError, AttributeError):
        message = None
    return str(message or f"the engine answers with status {status}")[:_SHOWN]
