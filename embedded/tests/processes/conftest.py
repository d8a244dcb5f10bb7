"""State folders whose processes are killed after the test."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest
from capelin_embedded.processes import kill_all, private_folder


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Path]:
    """An empty state folder."""
    state = private_folder(tmp_path / "state")
    yield state
    asyncio.run(kill_all(state))
