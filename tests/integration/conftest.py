"""Fixtures of the integration tests."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path

import pytest
from capelin.client import Client, Config
from capelin_embedded.binaries import Binaries
from capelin_embedded.management import all_environments, remove_environment
from capelin_embedded.testing.management import ManagementCluster
from capelin_embedded.testing.run import run_elsewhere

from .homes import Home


@pytest.fixture
async def management(management_cluster: ManagementCluster) -> AsyncGenerator[Client]:
    """A client of the management cluster that the test run shares."""
    async with Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as client:
        yield client


@pytest.fixture
def run_program() -> Callable[..., Awaitable[str]]:
    """Runs a cached binary with a kubeconfig and returns its output."""

    async def run(kubeconfig: Path, program: str, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            await Binaries().path(program),
            *arguments,
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return out.decode()

    return run


@pytest.fixture
def home(tmp_path: Path) -> Generator[Home]:
    """A home whose environments are always removed after the test."""
    home = Home(tmp_path)
    yield home
    for environment in all_environments(home.variables):
        run_elsewhere(remove_environment(environment))
