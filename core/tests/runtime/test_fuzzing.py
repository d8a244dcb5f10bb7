"""For any input, a server sends a response or disconnects, keeps running, and does not grow.

A seeded generator derives cases from valid requests. Add a failing seed to `SEEDS`.
"""

import json
import re
import socket
import ssl
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from capelin.runtime.v1alpha1 import (
    BeforeClusterCreate,
    Discovery,
    GeneratePatches,
    ValidateTopology,
)
from capelin.testing.waiting import wait_until

from tests.support.kernel import memory

from .server_process import CA, PATIENCE, Served, certificate, serving, write

SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.integration) for seed in (2, 3)))
CASES = 250
"""For each seed and each of the two tests."""

HOLDER = {
    "apiVersion": "cluster.x-k8s.io/v1beta2",
    "kind": "MachineDeployment",
    "namespace": "default",
    "name": "demo",
    "fieldPath": "spec.template.spec.bootstrap.configRef",
}
TEMPLATE = {
    "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
    "kind": "KubeadmConfigTemplate",
    "metadata": {"name": "demo", "namespace": "default"},
    "spec": {"template": {"spec": {"files": [{"path": "/etc/a", "content": "b"}]}}},
}
VARIABLES = [
    {"name": "builtin", "value": {"cluster": {"name": "demo"}, "machineDeployment": {"name": "a"}}},
    {"name": "motto", "value": "small fish"},
]
ITEM = {"uid": "1", "holderReference": HOLDER, "object": TEMPLATE, "variables": VARIABLES}
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (Discovery.id.path(), {}),
    (BeforeClusterCreate.id.path("pid"), {"cluster": {"metadata": {"name": "demo"}}}),
    (
        ValidateTopology.id.path("size"),
        {"items": [{"holderReference": HOLDER, "object": TEMPLATE}]},
    ),
    (GeneratePatches.id.path("motto"), {"variables": VARIABLES, "items": [ITEM]}),
)

STRANGE: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1.5,
        2**63,
        2**64,
        10**400,
        "",
        "\0",
        "\x7f\u2028",
        "\u0131",
        "\u017f",
        "\u212a",
    ),
    *([], {}, [[]], [None], {"": None}, {"a": {"a": {"a": {}}}}, "a" * 70_000, ["a"] * 3_000),
)
TOKENS: tuple[bytes, ...] = (
    *(
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\0",
        b":",
        b" ",
        b"?timeout=",
        b"-1",
        b"9" * 40,
        b"%00",
        b"\xff",
    ),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 7\r\n", b"Connection: close\r\n"),
    *(b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"HTTP/1.0", b"HTTP/9.9", b"GET ", b"PRI "),
    *(
        b"[" * 2_000,
        b'{"a":' * 2_000,
        b'"\\ud800"',
        b"\xed\xa0\x80",
        b"NaN",
        b"1e999",
        b"//",
        b"X" * 70_000,
    ),
)


def positions(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every position in a document: its parent, and its key or index in the parent."""
    inside: Any = document
    keys: list[Any] = list(inside if isinstance(document, dict) else range(len(inside)))
    for key in keys:
        yield document, key
        if isinstance(document[key], dict | list):
            yield from positions(document[key])


def strange_json(random: Random, request: dict[str, Any]) -> Any:
    """A request with one value replaced, renamed or repeated."""
    document = {"": json.loads(json.dumps(request))}
    holder, key = random.choice(list(positions(document)))
    match random.randrange(4):
        case 0 if isinstance(key, str):
            holder[random.choice((key.upper(), key.swapcase(), key + " "))] = holder.pop(key)
        case 1:
            holder[key] = [holder[key]] * random.choice((1, 2, 50))
        case _:
            holder[key] = random.choice(STRANGE)
    return document.get("")


def strange_bytes(random: Random, good: bytes) -> bytes:
    """Bytes with some removed, doubled, replaced or inserted."""
    data = bytearray(good)
    for _ in range(random.choice((1, 1, 2, 4))):
        start = random.randrange(len(data) + 1)
        end = min(len(data), start + random.choice((1, 3, 20, 200)))
        match random.randrange(5):
            case 0:
                del data[start:end]
            case 1:
                data[start:start] = data[start:end]
            case 2:
                data[start:end] = random.randbytes(end - start)
            case 3:
                del data[start:]
            case _:
                data[start:start] = random.choice(TOKENS)
    return bytes(data)


def whole(path: str, body: bytes) -> bytes:
    """An HTTP request of Cluster API."""
    head = f"POST {path}?timeout=10s HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Client:
    def __init__(self, server: Served) -> None:
        context = ssl.create_default_context(cadata=CA.certificate_pem.decode())
        plain = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        self.connection = context.wrap_socket(plain, server_hostname="127.0.0.1")

    def answers(self, sent: bytes, *, enough: Callable[[bytes], object]) -> bytes:
        """Response until it is complete, the server disconnects, or the timeout ends."""
        received = b""
        # The server may disconnect before it has received an invalid request completely.
        with suppress(ConnectionError, TimeoutError, ssl.SSLEOFError):
            self.connection.sendall(sent)
            while not enough(received) and (more := self.connection.recv(65536)):
                received += more
        return received


def is_whole(received: bytes) -> bool:
    """Whether a response is complete."""
    head, separator, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(separator and length) and len(body) >= int(length[1] if length else 0)


def statuses(received: bytes) -> Sequence[int]:
    """The status of each response."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("certs")
    write(folder, certificate())
    with serving(folder) as running:
        yield running


@pytest.fixture
def lasting(server: Served) -> Generator[None]:
    """Checks that the server still works, without more memory or open files."""
    proc = Path(f"/proc/{server.process.pid}")

    def files() -> int:
        return sum(1 for _ in (proc / "fd").iterdir())

    open_files, resident = files(), memory(server.process.pid)
    yield
    path, request = REQUESTS[-1]
    assert server.ask(path, json.dumps(request).encode())["status"] == "Success"
    wait_until(lambda: files() <= open_files)
    # The server keeps some memory of large requests for the next ones.
    assert memory(server.process.pid) - resident < 24 * 2**20
    assert "Traceback" not in "".join(server.log)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("lasting")
def test_every_body_gets_a_response(server: Served, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - a seed makes failures reproducible
    client = Client(server)
    for case in range(CASES):
        path, request = random.choice(REQUESTS)
        body = json.dumps(strange_json(random, request)).encode()
        if random.random() < 0.3:
            body = strange_bytes(random, body)
        received = client.answers(whole(path, body), enough=is_whole)
        assert statuses(received) == [200], f"case {case}: {body[:500]!r}"
        response = json.loads(received.partition(b"\r\n\r\n")[2])
        assert response["status"] in {"Success", "Failure"}, f"case {case}: {body[:500]!r}"
    client.connection.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("lasting")
def test_any_bytes_get_a_response_or_a_disconnect(server: Served, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - a seed makes failures reproducible
    answered = 0
    for case in range(CASES):
        path, request = random.choice(REQUESTS)
        sent = strange_bytes(random, whole(path, json.dumps(request).encode()))
        # A valid last request follows, because a truncated one consumes a part of it.
        last = whole(Discovery.id.path(), b"{}").replace(
            b"Host: a", b"Connection: close\r\nHost: a"
        )
        client = Client(server)
        # After this time the server waits for the rest of a body, which the client does not send.
        client.connection.settimeout(0.1)
        received = client.answers(sent + last, enough=lambda _: False)
        client.connection.close()
        assert all(status < 500 for status in statuses(received)), f"case {case}: {sent[:500]!r}"
        answered += bool(statuses(received))
    assert answered > CASES / 2
