"""The `capelin` command with all binaries in the cache."""

import asyncio
import os
import sys
import tempfile
import time

from capelin_embedded.binaries import TESTED_KUBERNETES, Binaries
from capelin_embedded.management import required_programs

from tests.bench.rows import Row

RUNS = 3


async def measure() -> list[Row]:
    """Start and remove environments. The slowest of a few runs counts."""
    await Binaries().fetch(required_programs(TESTED_KUBERNETES[-1], ["kubeadm-bootstrap"]))
    with tempfile.TemporaryDirectory(prefix="capelin-bench-") as home:
        without_demo = [await up_and_down(home, "--management-only") for _ in range(RUNS)]
        whole = [await up_and_down(home) for _ in range(RUNS)]
    return [
        row("capelin up --management-only", [up for up, _ in without_demo], at_most=15),
        row(
            "capelin up: demo cluster Available, 3 Ready nodes", [up for up, _ in whole], at_most=30
        ),
        row("capelin down", [down for _, down in (*without_demo, *whole)], at_most=5),
    ]


def row(name: str, took: list[float], *, at_most: float) -> Row:
    """The slowest run, and all runs for comparison."""
    others = ", ".join(f"{seconds:.1f}" for seconds in took)
    return Row(
        name=name, measured=max(took), unit="s", at_most=at_most, comparison=f"all: {others} s"
    )


async def up_and_down(home: str, *options: str) -> tuple[float, float]:
    """Seconds to start and to remove an environment."""
    up = await timed(home, "up", *options)
    return up, await timed(home, "down", "--yes")


async def timed(home: str, *arguments: str) -> float:
    """Seconds of a successful command."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "capelin_cli", *arguments, "-e", "bench"),
        env={**os.environ, "XDG_STATE_HOME": home},
        stdout=asyncio.subprocess.DEVNULL,
    )
    if await process.wait() != 0:
        raise RuntimeError(f"capelin {' '.join(arguments)} failed")
    return time.monotonic() - began
