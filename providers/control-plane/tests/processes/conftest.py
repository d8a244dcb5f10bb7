"""Control planes as processes, gone after the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .rig import CLUSTER, KEY, Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig.on(tmp_path / "control-planes")
    yield rig
    if rig.site is not None:
        await rig.backend.remove(KEY, CLUSTER, rig.site.address)
    assert list(rig.state.iterdir()) == []
