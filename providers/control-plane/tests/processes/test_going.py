"""How long the processes of a control plane may take to end."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from capelin.embedded.processes import Probe, records
from capelin_control_plane.backends.processes import Processes, backend

from .rig import CLUSTER, KEY, Idle, Rig, control_plane


def ready_at_once(*_: object) -> Probe:
    async def ask() -> AsyncGenerator[str, None]:
        while True:
            yield ""

    return ask


async def test_an_api_server_may_take_longer_by_what_it_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "readiness", ready_at_once)
    monkeypatch.setattr(backend, "reachability", ready_at_once)
    rig = Rig.on(tmp_path / "control-planes")
    rig.backend = Processes(rig.state, Idle(tmp_path), lambda _: rig.woken.set())
    await rig.until(control_plane(), lambda seen: seen.answers)
    try:
        server = records.read(rig.folder / "run", "kube-apiserver-0")
        etcd = records.read(rig.folder / "run", "etcd-0")
        assert (server and server.grace, etcd and etcd.grace) == (12, 10)
    finally:
        await rig.backend.remove(KEY, CLUSTER, rig.folder.name)
