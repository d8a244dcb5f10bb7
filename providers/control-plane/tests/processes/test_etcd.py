"""etcd members that lose their data or are changed, in real control planes."""

import shutil
import signal
from dataclasses import replace

import pytest
from capelin.api.core import ConfigMap
from capelin.embedded.processes import Process
from capelin_control_plane.desired import ComponentSettings, ControlPlane
from capelin_control_plane.instances import Observed

from .rig import KEY, NEW, Rig, Roll, control_plane, settled

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def three_members() -> ControlPlane:
    return replace(control_plane(NEW), etcd_replicas=3)


async def lose(rig: Rig, name: str) -> None:
    """Remove all that a member knows, and end it."""
    shutil.rmtree(rig.folder / name)
    process = Process.adopt(rig.folder / "run", name)
    assert process is not None
    process.signal(signal.SIGKILL)
    await process.wait()


def failure(seen: Observed, name: str) -> str:
    return next(part.failure for part in seen.statuses if part.name == name)


@pytest.mark.representative
async def test_a_member_that_lost_its_data_is_replaced_from_the_others(rig: Rig) -> None:
    wanted = three_members()
    await rig.until(wanted, settled)
    async with rig.under_load() as callers:
        await lose(rig, "etcd-1")
        seen = await rig.until(wanted, lambda seen: "lost its data" in failure(seen, "etcd-1"))
        assert seen.answers
        await rig.until(wanted, settled)
        await callers.go_on()
    # Nobody answers what was on its way through the member that was killed.
    assert len(callers.failed) <= len(callers.loads), callers.failed
    assert [failure for failure in callers.failed if ": 500 " not in failure] == []

    # The new one carries its share: the cluster does without another.
    await lose(rig, "etcd-2")
    async with rig.client() as client:
        await client.apply(ConfigMap.of("kept", "default"))


async def test_other_arguments_of_etcd_fail_no_request(rig: Rig) -> None:
    wanted = three_members()
    await rig.until(wanted, settled)
    before = rig.pids()
    told = {"etcd": ComponentSettings(arguments={"snapshot-count": "5000"})}
    roll = Roll()
    async with rig.under_load() as callers:
        await rig.until(replace(wanted, settings={**wanted.settings, **told}), roll.is_over)
        await callers.go_on()
    assert callers.failed == []
    after = rig.pids()
    assert {name for name in before if before[name] != after[name]} == {
        "etcd-0",
        "etcd-1",
        "etcd-2",
    }
    assert roll.most_away == 1


async def test_a_replacement_goes_on_where_a_provider_was_killed(rig: Rig) -> None:
    wanted = three_members()
    await rig.until(wanted, settled)
    await lose(rig, "etcd-1")
    await rig.until(wanted, lambda seen: "lost its data" in failure(seen, "etcd-1"))
    for _ in range(8):
        # A new provider a step: nothing that the last one knew is left.
        await rig.backend.release(KEY)
        await rig.until(wanted, lambda _: True)
    await rig.until(wanted, settled)


async def test_the_only_member_is_not_made_anew(rig: Rig) -> None:
    wanted = control_plane(NEW)
    await rig.until(wanted, settled)
    data = rig.folder / "etcd-0"
    data.rename(rig.folder / "away")
    process = Process.adopt(rig.folder / "run", "etcd-0")
    assert process is not None
    process.signal(signal.SIGKILL)
    seen = await rig.until(wanted, lambda seen: "lost its data" in failure(seen, "etcd-0"))
    assert f"{data} is gone" in failure(seen, "etcd-0")
    assert not data.exists()
    (rig.folder / "away").rename(data)
    await rig.until(wanted, settled)


async def test_a_corrupt_member_is_set_aside_and_replaced_from_the_others(rig: Rig) -> None:
    wanted = three_members()
    await rig.until(wanted, settled)
    process = Process.adopt(rig.folder / "run", "etcd-1")
    assert process is not None
    process.signal(signal.SIGSTOP)
    log = next((rig.folder / "etcd-1").glob("member/wal/*.wal"))
    content = bytearray(log.read_bytes())
    content[2000:40000] = b"\xff" * 38000
    log.write_bytes(content)
    process.signal(signal.SIGKILL)
    await process.wait()
    async with rig.client() as client:
        await client.apply(ConfigMap.of("kept", "default"))
    await rig.until(wanted, lambda _: any(rig.folder.glob("etcd-1.corrupt-*")))
    await rig.until(wanted, settled)
    (aside,) = rig.folder.glob("etcd-1.corrupt-*")
    assert (aside / "member" / "wal").is_dir(), "the data is kept"
