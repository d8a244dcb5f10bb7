"""The time that processes of a control plane have to stop."""

from pathlib import Path

import pytest
from capelin_embedded.processes import state_dir

from .rig import KEY, Idle, Rig, all_ready_at_once, control_plane


async def test_grace_includes_the_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_ready_at_once(monkeypatch)
    rig = Rig.on(tmp_path / "control-planes", Idle(tmp_path))
    await rig.until(control_plane(), lambda observed: observed.answers)
    try:
        server = state_dir.read_record(rig.folder / "run", "kube-apiserver-0")
        etcd = state_dir.read_record(rig.folder / "run", "etcd-0")
        assert (server and server.grace, etcd and etcd.grace) == (12, 10)
    finally:
        await rig.backend.delete(KEY)
