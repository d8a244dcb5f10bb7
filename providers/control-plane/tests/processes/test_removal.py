"""What of a control plane is removed, and what is left alone because it is another one's."""

from pathlib import Path

import pytest
from capelin.controller import ObjectKey
from capelin.embedded.processes import Declared, Process, kill_all
from capelin_control_plane.backends import Problem

from .rig import CLUSTER, KEY, Idle, Rig, control_plane


@pytest.fixture
def idle(tmp_path: Path) -> Rig:
    """A backend of control planes that run nothing."""
    return Rig.on(tmp_path / "control-planes")


async def claim(rig: Rig) -> None:
    """Take a place, as before anything runs."""
    site = await rig.backend.claim(control_plane(), rig.keys, None)
    assert not isinstance(site, Problem)
    rig.site = site


async def test_a_control_plane_is_removed_with_all_that_there_is_of_it(idle: Rig) -> None:
    await claim(idle)
    assert idle.site is not None
    await idle.backend.remove(KEY, CLUSTER, idle.site.address)
    assert list(idle.state.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "cluster"), [(ObjectKey("elsewhere", "one"), CLUSTER), (KEY, "two")]
)
async def test_a_copy_goes_without_the_original(idle: Rig, key: ObjectKey, cluster: str) -> None:
    await claim(idle)
    assert idle.site is not None
    before = sorted(idle.state.rglob("*"))
    await idle.backend.remove(key, cluster, idle.site.address)
    assert sorted(idle.state.rglob("*")) == before


@pytest.mark.parametrize("address", ["", ".", "..", "127.64.0.9/..", "shoal", "{state}"])
async def test_what_is_no_address_names_no_folder(idle: Rig, address: str) -> None:
    await claim(idle)
    owner = (idle.folder / "owner.json").read_bytes()
    # Even if what looks like the mark of its owner is there.
    for folder in (idle.state, idle.state.parent):
        (folder / "owner.json").write_bytes(owner)
    before = sorted(idle.state.parent.rglob("*"))
    said = address.format(state=idle.state)
    await idle.backend.remove(KEY, CLUSTER, said)
    assert sorted(idle.state.parent.rglob("*")) == before
    assert isinstance(await idle.backend.claim(control_plane(), idle.keys, said), Problem)


async def test_what_a_reboot_ended_is_not_started_only_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig.on(tmp_path / "control-planes", Idle(tmp_path))
    await rig.until(control_plane(), lambda _: True)
    await rig.backend.release(KEY)
    await kill_all(rig.folder / "run")
    started: list[str] = []

    async def starts(_: Path, declared: Declared) -> Process:
        started.append(declared.name)
        raise OSError("not now")

    monkeypatch.setattr(Process, "start", starts)
    await rig.backend.remove(KEY, CLUSTER, rig.folder.name)
    assert started == []
    assert list(rig.state.iterdir()) == []
