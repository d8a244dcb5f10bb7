"""Control planes as processes, gone after the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .rig import KEY, Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig.on(tmp_path / "control-planes")
    yield rig
    if rig.endpoint is not None:
        await rig.backend.delete(KEY)
    assert list(rig.state.iterdir()) == []
