"""Fixtures for tests of the client of hooks."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from .hook_server import Server, credentials, listening, server_context


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server]:
    server = Server()
    context = server_context(credentials(tmp_path / "served"))
    async with listening(server.handle, context) as server.port:
        yield server
