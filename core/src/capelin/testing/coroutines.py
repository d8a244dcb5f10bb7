"""The fixtures that are coroutines, loaded only with pytest-asyncio."""

# ruff: noqa: PLC0415

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest_asyncio

if TYPE_CHECKING:
    from capelin.client import Client


@pytest_asyncio.fixture
async def client(kubeconfig: Path) -> "AsyncGenerator[Client]":
    """A client of `api_server`, as its administrator, in the test's own event loop."""
    from capelin.client import Client, Config

    async with Client(Config.from_kubeconfig(kubeconfig), manager="test") as connected:
        yield connected
