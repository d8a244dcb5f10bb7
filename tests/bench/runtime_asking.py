"""Repeats the same requests to two servers and compares the results."""

import asyncio
import json
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.rows import percentile
from tests.bench.running import resident_memory
from tests.extensions import HOST

CLIENT = Path(__file__).with_name("runtime_load.py")
CONNECTIONS = 8
ROUNDS = 5
SECONDS = 3.0
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class Server:
    """A running extension."""

    name: str
    ports: tuple[int, ...]
    processes: tuple[int, ...]

    def resident(self) -> list[float]:
        """The memory of each process in MiB, including shared memory."""
        return [resident_memory(pid) for pid in self.processes]


@dataclass(frozen=True, slots=True)
class Question:
    """A repeated request."""

    name: str
    path: str
    body: bytes

    def request(self) -> bytes:
        """The whole request, with the headers that Cluster API sends."""
        head = (
            f"POST {self.path}?timeout=10s HTTP/1.1\r\nHost: {HOST}\r\nUser-Agent: bench\r\n"
            f"Content-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


@dataclass(slots=True)
class Result:
    """Results of a server by round."""

    rates: list[float] = field(default_factory=list[float])
    halves: list[float] = field(default_factory=list[float])
    tails: list[float] = field(default_factory=list[float])

    def add(self, took: Sequence[float], seconds: float) -> None:
        """Record the milliseconds of a round's calls."""
        self.rates.append(len(took) / seconds)
        self.halves.append(percentile(took, 0.5))
        self.tails.append(percentile(took, 0.99))

    @property
    def words(self) -> str:
        """The median of all rounds."""
        return (
            f"{median(self.rates):,.0f}/s, p50 {median(self.halves):.2f} ms,"
            f" p99 {median(self.tails):.1f} ms"
        )


async def rounds(
    ours: Server, theirs: Server, question: Question, folder: Path
) -> tuple[Result, Result]:
    """Call both in turn, so that other load on the machine affects both."""
    results = Result(), Result()
    for _ in range(ROUNDS):
        for server, result in zip((ours, theirs), results, strict=True):
            result.add(await load(server, question, folder), SECONDS)
    return results


def ratio(mine: Result, other: Result) -> float:
    """Median ratio of the two rates."""
    return median(one / two for one, two in zip(mine.rates, other.rates, strict=True))


async def load(
    server: Server,
    question: Question,
    folder: Path,
    *,
    seconds: float = SECONDS,
    connections: int = CONNECTIONS,
) -> Sequence[float]:
    """Call over several connections at once. Returns the milliseconds of each call."""
    file = folder / f"{question.name}.http"
    file.write_bytes(question.request())
    command = (str(CLIENT), HOST)
    pipe = asyncio.subprocess.PIPE
    clients = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            str(server.ports[number % len(server.ports)]),
            str(folder / "ca.crt"),
            str(file),
            stdin=pipe,
            stdout=pipe,
            limit=256 * MEBIBYTE,
        )
        for number in range(connections)
    ]
    for client in clients:
        if client.stdout is None or await client.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{server.name} does not answer {question.name}")
    duration = f"{seconds}\n".encode()
    outputs = await asyncio.gather(*(client.communicate(duration) for client in clients))
    took = array("f")
    for output, _ in outputs:
        took.frombytes(output)
    return took


def body(request: Any) -> bytes:
    """JSON without spaces, like Go's."""
    return json.dumps(request, separators=(",", ":")).encode()
