"""A real control plane sleeps and wakes with its data, also under another provider."""

from dataclasses import replace

import pytest
from capelin.api.core import ConfigMap
from capelin_control_plane.desired.instances import Observed

from .rig import KEY, OLD, Rig, control_plane, settled

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.needs_programs(
        *(f"kube-{name}@{OLD}" for name in ("apiserver", "controller-manager", "scheduler"))
    ),
]


def is_stopped(observed: Observed) -> bool:
    return not observed.alive


async def test_the_same_instances_run_after_a_sleep(rig: Rig) -> None:
    desired = control_plane(OLD)
    before = await rig.until(desired, settled)
    async with rig.client() as client:
        await client.create(ConfigMap.of("kept", "default"))
    asleep = replace(desired, asleep=True)
    sleeping = await rig.until(asleep, is_stopped)
    assert rig.pids() == {}
    assert sleeping.plan == before.plan
    # Another provider starts nothing, and the change of etcd's size waits.
    await rig.backend.release(KEY)
    resized = replace(desired, etcd_replicas=3)
    await rig.until(replace(resized, asleep=True), is_stopped)
    assert rig.pids() == {}
    woken = await rig.until(resized, lambda observed: observed.answers)
    assert {instance.name for instance in before.plan.instances} <= {
        instance.name for instance in woken.plan.instances
    }
    after = await rig.until(resized, settled)
    assert len(after.of("etcd")) == 3
    async with rig.client() as client:
        assert await client.find(ConfigMap, "kept", "default") is not None
    # It falls asleep again before everything is ready, and wakes.
    await rig.until(asleep, is_stopped)
    await rig.reconcile(resized)
    await rig.until(asleep, is_stopped)
    assert rig.pids() == {}
    await rig.until(resized, settled)
