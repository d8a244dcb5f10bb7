"""Deletion removes all files of a control plane and none of another."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.controller import ObjectKey
from capelin.provider import Blocked
from capelin_embedded.processes import Process, ProcessSpec, Supervisor, kill_all

from .rig import KEY, Idle, Rig, authorities, control_plane


@pytest.fixture
def idle(tmp_path: Path) -> Rig:
    """A backend of control planes that run nothing."""
    return Rig.on(tmp_path / "control-planes")


async def test_deletion_removes_all_files_of_a_control_plane(idle: Rig) -> None:
    await idle.allocate(control_plane())
    await idle.backend.delete(KEY)
    assert list(idle.state.iterdir()) == []


@pytest.mark.parametrize("key", [ObjectKey("elsewhere", "one"), ObjectKey("default", "two")])
async def test_deletion_of_a_copy_keeps_the_original(idle: Rig, key: ObjectKey) -> None:
    await idle.allocate(control_plane())
    before = sorted(idle.state.rglob("*"))
    await idle.backend.delete(key)
    assert sorted(idle.state.rglob("*")) == before
    await idle.backend.delete(KEY)


async def test_deletion_removes_the_remains_of_an_earlier_deletion(idle: Rig) -> None:
    await idle.allocate(control_plane())
    left = idle.state / ".127.64.0.9.deleted"
    (left / "etcd-0").mkdir(parents=True)
    await idle.backend.delete(KEY)
    assert list(idle.state.iterdir()) == []


@pytest.mark.parametrize("address", ["", ".", "..", "127.64.0.9/..", "shoal", "{state}"])
async def test_an_invalid_address_names_no_folder(idle: Rig, address: str) -> None:
    await idle.allocate(control_plane())
    await idle.backend.release(KEY)
    owner = (idle.folder / "owner.json").read_bytes()
    # Even with a file that looks like the mark of its owner.
    for folder in (idle.state, idle.state.parent):
        (folder / "owner.json").write_bytes(owner)
    before = sorted(idle.state.parent.rglob("*"))
    text = address.format(state=idle.state)
    await idle.backend.keep_running(KEY, text)
    with pytest.raises(Blocked):
        await idle.backend.allocate(KEY, control_plane(), idle.keys, text)
    assert sorted(idle.state.parent.rglob("*")) == before
    (idle.state / "owner.json").unlink()
    await idle.backend.delete(KEY)


async def test_removal_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig.on(tmp_path / "control-planes", Idle(tmp_path))
    await rig.until(control_plane(), lambda _: True)
    await rig.backend.release(KEY)
    await kill_all(rig.folder / "run")
    started: list[str] = []

    async def starts(_: Path, declared: ProcessSpec, **__: object) -> Process:
        started.append(declared.name)
        raise OSError("not now")

    monkeypatch.setattr(Process, "start", starts)
    await rig.backend.delete(KEY)
    assert started == []
    assert list(rig.state.iterdir()) == []


async def test_new_object_of_the_same_name_starts_empty(
    idle: Rig,
) -> None:
    await idle.allocate(control_plane())
    first = idle.folder
    certificate = (first / "pki" / "admin.pem").read_bytes()
    second = Rig(idle.state, authorities(datetime.now(UTC)), idle.backend)
    await second.allocate(control_plane())
    assert second.folder != first
    assert (first / "pki" / "admin.pem").read_bytes() == certificate
    async with Supervisor(first / "run"):
        """No supervisor holds the first one."""
    await idle.backend.delete(KEY)
    assert list(idle.state.iterdir()) == []


async def test_the_deletion_of_an_old_owner_keeps_the_folder_of_the_new_one(idle: Rig) -> None:
    await idle.allocate(control_plane())
    heir = ObjectKey("default", "heir")
    await idle.backend.allocate(heir, control_plane(), idle.keys, idle.folder.name)
    await idle.backend.delete(KEY)
    assert idle.folder.exists()
    await idle.backend.delete(heir)
    assert list(idle.state.iterdir()) == []


async def test_an_unreadable_owner_does_not_affect_other_control_planes(
    idle: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    broken = idle.state / "127.64.0.9"
    broken.mkdir(parents=True)
    for content in ("", "[]", "{}", "\0" * 100):
        (broken / "owner.json").write_text(content)
        await idle.allocate(control_plane())
        assert await idle.backend.allocated() == {KEY}
        await idle.backend.delete(KEY)
        idle.endpoint = None
    assert broken.exists()
    assert caplog.text.count("has no readable owner.json") == 1
    (broken / "owner.json").unlink()
    broken.rmdir()
