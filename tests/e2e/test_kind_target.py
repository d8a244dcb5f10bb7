"""`capelin up --target kind`: an environment with its own kind cluster."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from capelin.testing.waiting import until

from tests.integration.homes import Home
from tests.leftovers import mentioning

from . import kind_cluster

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
async def name(tmp_path: Path) -> AsyncGenerator[str]:
    """An environment that is always removed with its kind cluster."""
    name = f"e2e-{uuid4().hex[:6]}"
    yield name
    # If it is already deleted, the command prints that and exits with another code.
    await Home(tmp_path).capelin("down", "--yes", "-e", name)
    kind_cluster.delete(f"capelin-{name}")


async def test_an_environment_has_its_own_kind_cluster(
    tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    home, cluster = Home(tmp_path), f"capelin-{name}"
    began = monotonic()

    async def done(*arguments: str) -> None:
        ended = await home.capelin(*arguments, "-e", name)
        assert ended.code == 0, ended.err

    async def running() -> bool:
        listed = await home.capelin("status", "-e", name, "-o", "json")
        return '"state": "up"' in listed.out

    target = ("--target", "kind", "--node-image", kind_cluster.IMAGE)
    await done("up", *target, "--workers", "2")
    record_property("seconds of up --target kind", round(monotonic() - began, 1))
    assert cluster in kind_cluster.names()
    await done("up")

    node = f"{cluster}-control-plane"
    stopped = await asyncio.create_subprocess_exec("docker", "stop", node)
    assert await stopped.wait() == 0
    await done("up")
    await until(running, within=60)

    await done("down", "--yes")
    assert cluster not in kind_cluster.names()
    assert mentioning(tmp_path, "environ") == []
