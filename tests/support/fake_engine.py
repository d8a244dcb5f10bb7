"""A container engine for tests: containers are entries of a dictionary."""

import asyncio
import io
import json
import tarfile
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit

from capelin_machine_pool.containers.engine import Engine

Run = Callable[[str, bytes], tuple[int, bytes, bytes]]
"""Carries out a shell command with its input."""


@dataclass
class FakeEngine:
    """The state of the engine, and its answers to commands."""

    run: Run = lambda _, stdin: (0, stdin, b"")
    images: set[str] = field(default_factory=set[str])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """The files of every container by their paths."""
    gateways: dict[str, str] = field(default_factory=dict[str, str])
    """The address of this machine in each network."""
    containers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    requests: list[str] = field(default_factory=list[str])
    """Method and path of each request that changes something."""
    cut_at: int | None = None
    """The number of the request at which the connection ends, before or after its effect."""
    cut_after: bool = False
    _commands: list[str] = field(default_factory=list[str])
    _codes: dict[int, int] = field(default_factory=dict[int, int])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target, _ = head.split(maxsplit=2)
            lengths = [
                int(line.partition(":")[2])
                for line in head.splitlines()
                if line.lower().startswith("content-length:")
            ]
            content = await reader.readexactly(lengths[0]) if lengths else b""
            url = urlsplit(target)
            request = f"{method} {url.path}"
            if method != "GET":
                self.requests.append(request)
            is_cut = method != "GET" and len(self.requests) - 1 == self.cut_at
            if is_cut and not self.cut_after:
                return
            if url.path.startswith("/exec/") and method == "POST":
                answer = await self._executed(int(url.path.split("/")[2]), reader, writer)
            else:
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                body = json.loads(content or b"{}")
                answer = _response(*self._answer(method, url.path, query, body))
            if not is_cut:
                writer.write(answer)
                await writer.drain()

    def _answer(  # noqa: C901, PLR0911, PLR0912 - one case for each request
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any]
    ) -> tuple[int, Any]:
        match method, path.strip("/").split("/"):
            case "GET", ["version"]:
                return 200, {"Version": "1.0", "Components": [{"Name": "Fake"}]}
            case "GET", ["containers", "json"]:
                (label,) = json.loads(query["filters"])["label"]
                found = ((name, each["Config"]["Labels"]) for name, each in self.containers.items())
                return 200, [
                    {"Id": name, "Labels": labels} for name, labels in found if label in labels
                ]
            case "POST", ["containers", "create"]:
                return self._create(query.get("name", "random"), body)
            case "GET", ["containers", name, "json"]:
                container = self.containers.get(name)
                return (200, container) if container else (404, {"message": "no such container"})
            case "POST", ["containers", name, "exec"]:
                if self.containers[name]["State"]["Status"] != "running":
                    return 409, {"message": f"container {name} is not running"}
                self._commands.append(body["Cmd"][-1])
                return 201, {"Id": str(len(self._commands) - 1)}
            case "GET", ["exec", number, "json"]:
                return 200, {"Running": False, "ExitCode": self._codes[int(number)]}
            case "POST", ["containers", name, verb]:
                state = {"start": "running", "unpause": "running", "pause": "paused"}[verb]
                self.containers[name]["State"]["Status"] = state
                return 204, None
            case "DELETE", ["containers", name]:
                return (204, None) if self.containers.pop(name, None) else (404, {})
            case "GET", ["containers", _, "archive"]:
                return self._archive(query["path"])
            case "GET", ["networks", name]:
                gateway = self.gateways.get(name)
                config = {"IPAM": {"Config": [{"Subnet": "127.0.0.0/8", "Gateway": gateway}]}}
                return (200, config) if gateway else (404, {"message": "no such network"})
            case "POST", ["images", "create"]:
                return 200, {"error": "pull access denied"}
            case "GET", ["images", *words]:
                return (200, {}) if "/".join(words[:-1]) in self.images else (404, {})
            case _:
                return 404, {"message": f"unknown request {method} {path}"}

    def _create(self, name: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        if name in self.containers:
            return 409, {"message": f"the name {name} is in use"}
        self.containers[name] = {
            "Id": name,
            "Config": {"Labels": body.get("Labels", {})},
            "State": {"Status": "created", "ExitCode": 0},
            "NetworkSettings": {"Networks": {"bridge": {"IPAddress": "172.17.0.2"}}},
            "Body": body,
        }
        return 201, {"Id": name}

    def _archive(self, path: str) -> tuple[int, Any]:
        found = {name: self.files[name] for name in self.files if name.startswith(path)}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, content in found.items():
                member = tarfile.TarInfo(name.lstrip("/"))
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return (200, buffer.getvalue()) if found else (404, {"message": f"no {path}"})

    async def _executed(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        """Run a command, and return its outputs in frames."""
        writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        code, output, errors = self.run(self._commands[number], await reader.read(-1))
        self._codes[number] = code
        return b"".join(
            bytes([kind, 0, 0, 0]) + len(content).to_bytes(4) + content
            for kind, content in ((1, output), (2, errors))
            if content
        )


@asynccontextmanager
async def fake_engine(state: FakeEngine) -> AsyncGenerator[Engine]:
    """A client of an engine with this state."""
    # A path of a socket has at most 107 bytes, and pytest's folders may have more.
    with TemporaryDirectory(prefix="engine-", dir="/tmp") as folder:
        socket = f"{folder}/s"
        async with await asyncio.start_unix_server(state.serve, socket):
            yield Engine(socket)


def _response(status: int, answer: object) -> bytes:
    content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    content = b"" if answer is None else content
    head = (
        f"HTTP/1.1 {status} Status\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content
