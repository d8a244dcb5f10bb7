"""Compares the Runtime SDK's server with Cluster API's reference extension: same requests and work.

`tests/integration/test_reference_answers.py` proves that both give the same answers.
"""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from capelin.runtime.v1alpha1 import Discovery, GeneratePatches, ValidateTopology
from capelin_embedded.apiserver import ApiServer, Settings

from tests.bench.rows import Row
from tests.bench.running import proportional_memory
from tests.bench.runtime_asking import (
    MEBIBYTE,
    Question,
    Server,
    body,
    load,
    ratio,
    rounds,
)
from tests.bench.runtime_payload import generate_patches, validate_topology
from tests.extensions import certificates, drop_in, reference

REPLICAS = 2

QUIET = Settings(durable=False, controllers=())
"""The reference extension needs an API server to start."""


async def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as name:
        folder = Path(name)
        certificates(folder)
        async with (
            api_server(folder) as kubeconfig,
            original(folder, kubeconfig) as theirs,
            capelin(folder, kubeconfig, REPLICAS) as ours,
        ):
            patches, checks = generate_patches(), validate_topology([])
            rows = [
                *await compare_patches(ours, theirs, patches, folder),
                *await compare_small(ours, theirs, "discovery", Discovery.id.path(), {}, folder),
                *await compare_small(
                    ours,
                    theirs,
                    "validate-topology",
                    ValidateTopology.id.path("validate-topology"),
                    checks,
                    folder,
                ),
                *memory(ours, theirs),
                await largest(ours, theirs, patches["items"], folder),
                *memory_after_the_largest(ours, theirs),
            ]
    return rows


async def compare_patches(
    ours: Server, theirs: Server, request: dict[str, Any], folder: Path
) -> list[Row]:
    """The hook with the most work."""
    path = GeneratePatches.id.path("generate-patches")
    question = Question("generate-patches", path, body(request))
    mine, other = await rounds(ours, theirs, question, folder)
    title = f"GeneratePatches, {len(request['items'])} templates, {len(question.body) // 1000} KB"
    comparison = f"ours {mine.words}, Go {other.words}"
    return [
        Row(
            name=f"{title}: times Go's requests a second",
            measured=ratio(mine, other),
            unit="times",
            at_least=3,
            comparison=comparison,
        ),
        Row(
            name=f"{title}: p99 relative to Go's",
            measured=median(mine.tails) / median(other.tails),
            unit="times",
            at_most=1,
        ),
    ]


async def compare_small(
    ours: Server, theirs: Server, name: str, path: str, request: dict[str, Any], folder: Path
) -> list[Row]:
    """A hook with almost no work, to measure the server."""
    mine, other = await rounds(ours, theirs, Question(name, path, body(request)), folder)
    return [
        Row(
            name=f"{name}: times Go's requests a second",
            measured=ratio(mine, other),
            unit="times",
            at_least=0.5,
            comparison=f"ours {mine.words}, Go {other.words}",
        ),
        Row(name=f"{name}: p50", measured=median(mine.halves), unit="ms", at_most=1),
    ]


async def largest(ours: Server, theirs: Server, items: list[Any], folder: Path) -> Row:
    """A request of the maximum size."""
    size = len(body(validate_topology(items)))
    request = validate_topology(items * (20 * MEBIBYTE // size))
    path = ValidateTopology.id.path("validate-topology")
    question = Question("largest", path, body(request))
    took = {
        server.name: min(await load(server, question, folder, seconds=4, connections=1)) / 1000
        for server in (ours, theirs)
    }
    return Row(
        name=f"a request of {len(question.body) / MEBIBYTE:.1f} MiB",
        measured=took[ours.name],
        unit="s",
        at_most=1,
        comparison=f"Go {took[theirs.name]:.2f} s",
    )


def memory(ours: Server, theirs: Server) -> list[Row]:
    """Memory of the processes under typical requests."""
    go = sum(theirs.resident())
    replicas = ours.resident()
    together = sum(map(proportional_memory, ours.processes))
    return [
        Row(
            name="memory of one process under load, relative to Go's",
            measured=max(replicas) / go,
            unit="times",
            at_most=1,
            comparison=f"ours {max(replicas):.0f} MiB, Go {go:.0f} MiB",
        ),
        Row(
            name=f"memory of {len(replicas)} replicas, relative to Go's",
            measured=together / go,
            unit="times",
            at_most=3,
            comparison=f"ours {together:.0f} MiB, shared memory counted once",
        ),
    ]


def memory_after_the_largest(ours: Server, theirs: Server) -> list[Row]:
    """Memory after the largest request."""
    return [
        Row(
            name="memory of the largest process after the largest request",
            measured=max(ours.resident()),
            unit="MiB",
            comparison=f"Go {max(theirs.resident()):.0f} MiB",
        )
    ]


@asynccontextmanager
async def api_server(folder: Path) -> AsyncGenerator[Path]:
    """The kubeconfig of an API server for both."""
    server = await ApiServer.prepare(folder / "server", QUIET)
    try:
        await server.start()
        yield server.kubeconfig
    finally:
        await server.stop()


@asynccontextmanager
async def original(folder: Path, kubeconfig: Path) -> AsyncGenerator[Server]:
    # The lowest log level still writes about twenty lines for a request with 20 templates.
    async with reference(folder, kubeconfig, "--v=0") as running:
        yield Server("reference", (running.port,), (running.pid,))


@asynccontextmanager
async def capelin(folder: Path, kubeconfig: Path, replicas: int) -> AsyncGenerator[Server]:
    """The same hooks on the Runtime SDK, with the recommended number of replicas."""
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(drop_in(folder, kubeconfig)) for _ in range(replicas)
        ]
        yield Server("capelin", tuple(r.port for r in running), tuple(r.pid for r in running))
