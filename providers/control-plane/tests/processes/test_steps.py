"""What a backend of processes plans at once, and what it leaves for when something is ready."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
from capelin.embedded.processes import Probe
from capelin_control_plane.backends import Observed
from capelin_control_plane.backends.processes import Processes, backend
from capelin_control_plane.desired import ControlPlane, Tuning

from .rig import CLUSTER, KEY, Idle, Rig, control_plane, settled


def ready_at_once(*_: object) -> Probe:
    async def ask() -> AsyncGenerator[str, None]:
        while True:
            yield ""

    return ask


def told(wanted: ControlPlane, flag: str) -> ControlPlane:
    """The same with a flag for etcd."""
    return replace(wanted, tuning={**wanted.tuning, "etcd": Tuning(arguments={flag: "1"})})


async def test_members_of_etcd_are_changed_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "readiness", ready_at_once)
    monkeypatch.setattr(backend, "reachability", ready_at_once)
    rig = Rig.on(tmp_path / "control-planes")
    rig.backend = Processes(rig.state, Idle(tmp_path), lambda _: rig.woken.set())
    wanted = replace(control_plane(), etcd_replicas=3)
    await rig.until(wanted, settled)
    most_away = 0

    def replaced(seen: Observed) -> bool:
        nonlocal most_away
        most_away = max(most_away, sum(not member.ready for member in seen.of("etcd")))
        return settled(seen)

    try:
        await rig.until(told(wanted, "shoal"), replaced)
        assert most_away == 1
    finally:
        await rig.backend.remove(KEY, CLUSTER, rig.folder.name)
