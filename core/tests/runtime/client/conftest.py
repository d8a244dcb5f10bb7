"""What the tests of the calling side share."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from .hook_server import Server, credentials, listening, server_context


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server]:
    made = Server()
    context = server_context(credentials(tmp_path / "served"))
    async with listening(made.handle, context) as made.port:
        yield made
