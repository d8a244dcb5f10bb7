"""A pause changes nothing that runs: what has ended starts again, and nothing else happens."""

import os
import signal
from pathlib import Path

import pytest
from capelin.api.core import ConfigMap
from capelin.testing.waiting import until
from capelin_embedded.processes import Supervisor

from .rig import KEY, OLD, Idle, Rig, control_plane, settled


def kill(rig: Rig, *names: str) -> None:
    for name, pid in rig.pids().items():
        if name in names:
            os.kill(pid, signal.SIGKILL)


async def test_an_ended_instance_starts_again_and_others_are_not_touched(tmp_path: Path) -> None:
    rig = Rig.on(tmp_path / "control-planes", Idle(tmp_path))
    endpoint = await rig.allocate(control_plane(OLD))
    await rig.until(control_plane(OLD), lambda _: {"etcd-0", "relay-0"} <= rig.pids().keys())
    before = rig.pids()
    await rig.backend.release(KEY)
    # It waits for an etcd that never becomes ready.
    waiting = {"kube-apiserver-0"}
    assert await rig.backend.start_again(KEY, endpoint.address) == waiting
    await rig.backend.close()
    kill(rig, "etcd-0")
    await until(lambda: "etcd-0" not in rig.pids())

    assert await rig.backend.start_again(KEY, "127.64.9.9") == frozenset(), "it moved"
    assert await rig.backend.start_again(KEY, endpoint.address) == waiting | {"etcd-0"}
    await until(lambda: "etcd-0" in rig.pids())
    assert rig.pids()["relay-0"] == before["relay-0"]
    # After the pause, it is adopted.
    now = rig.pids()
    await rig.reconcile(control_plane(OLD))
    assert rig.pids() == now
    await rig.backend.delete(KEY)
    await rig.backend.close()


@pytest.mark.integration
@pytest.mark.timeout(240)
@pytest.mark.needs_programs(
    *(f"kube-{name}@{OLD}" for name in ("apiserver", "controller-manager", "scheduler"))
)
async def test_a_paused_control_plane_serves_again_after_everything_was_killed(rig: Rig) -> None:
    desired = control_plane(OLD)
    await rig.until(desired, settled)
    async with rig.client() as client:
        await client.create(ConfigMap.of("kept", "default"))
    names, address = rig.pids().keys(), rig.folder.name
    await rig.backend.release(KEY)
    kill(rig, *names)

    async def runs() -> bool:
        return not await rig.backend.start_again(KEY, address)

    await until(runs, within=120)
    assert rig.pids().keys() == names
    async with rig.client() as client:
        await until(lambda: client.find(ConfigMap, "kept", "default"))

    async def is_free() -> bool:
        """Whether another provider, or a recovery, can take over."""
        async with Supervisor(rig.folder / "run"):
            return True

    assert await is_free()
    await rig.until(desired, settled)
