"""A KMS v2 plugin: a program whose keys are in a file, and a handle to it for tests.

`python -m tests.support.kms_plugin SOCKET KEYS`
"""

import asyncio
import base64
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capelin.testing.waiting import until
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SERVICE = "v2.KeyManagementService"
_ROOT = Path(__file__).parents[2]
_LENGTH_DELIMITED = 2


def write_message(fields: dict[int, bytes]) -> bytes:
    """A protobuf message whose fields are all strings, bytes or messages."""
    message = b""
    for number, value in fields.items():
        message += bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(value)) + value
    return message


def read_message(message: bytes) -> dict[int, bytes]:
    """The fields of such a message."""
    fields: dict[int, bytes] = {}
    position = 0
    while position < len(message):
        number, position = message[position] >> 3, position + 1
        length = shift = 0
        while True:
            byte, position = message[position], position + 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        fields[number] = message[position : position + length]
        position += length
    return fields


def _varint(number: int) -> bytes:
    encoded = b""
    while number >= 0x80:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


class Service:
    """The methods of a plugin, with the keys of a file that may change at any time."""

    def __init__(self, keys: Path) -> None:
        self._keys = keys

    def status(self, _: bytes) -> bytes:
        current, _keys = self._read()
        return write_message({1: b"v2", 2: b"ok", 3: current.encode()})

    def encrypt(self, request: bytes) -> bytes:
        current, keys = self._read()
        nonce = os.urandom(12)
        sealed = nonce + keys[current].encrypt(nonce, read_message(request)[1], None)
        return write_message({1: sealed, 2: current.encode()})

    def decrypt(self, request: bytes) -> bytes:
        fields = read_message(request)
        sealed = fields[1]
        key = self._read()[1][fields[3].decode()]
        return write_message({1: key.decrypt(sealed[:12], sealed[12:], None)})

    def _read(self) -> tuple[str, dict[str, AESGCM]]:
        content = json.loads(self._keys.read_bytes())
        keys = {name: AESGCM(base64.b64decode(key)) for name, key in content["keys"].items()}
        return content["current"], keys


def serve(socket: Path, keys: Path) -> None:
    """Serve until SIGTERM."""
    # It has no types.
    grpc: Any = importlib.import_module("grpc")
    service = Service(keys)
    methods = {"Status": service.status, "Encrypt": service.encrypt, "Decrypt": service.decrypt}

    def handler(method: Callable[[bytes], bytes]) -> Any:
        def call(request: bytes, _: object) -> bytes:
            return method(request)

        return grpc.unary_unary_rpc_method_handler(call)

    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {name: handler(method) for name, method in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    server.wait_for_termination()


@dataclass
class KmsPlugin:
    """A plugin in a process of its own, and its keys."""

    folder: Path
    keys: dict[str, str] = field(default_factory=dict[str, str])
    process: asyncio.subprocess.Process | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "plugin.sock"

    def use(self, name: str) -> None:
        """Encrypt with a key, which may be a new one."""
        self.keys.setdefault(name, base64.b64encode(os.urandom(32)).decode())
        self._write(name)

    def retire(self, name: str) -> None:
        """Delete a key that is not in use."""
        del self.keys[name]
        self._write(next(reversed(self.keys)))

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, str(self.socket), str(self._file)), cwd=_ROOT
        )
        await until(self.socket.is_socket)
        # In pods, API servers have another user.
        self.folder.chmod(0o755)
        self.socket.chmod(0o666)

    async def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()
            self.process = None

    @property
    def _file(self) -> Path:
        return self.folder / "keys.json"

    def _write(self, current: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"current": current, "keys": self.keys}))
        new.replace(self._file)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
