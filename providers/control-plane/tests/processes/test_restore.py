"""Restores of real control planes on processes, in place and after crashes at any write."""

import asyncio
import base64
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from capelin.api.core import ConfigMap
from capelin.client import Client, Expired, NotFound
from capelin.testing.waiting import until
from capelin_control_plane.backends.processes import member_data, restore_files
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.restores import revision_bump
from capelin_control_plane.backup.snapshots import try_snapshot
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Observed, Phase
from capelin_embedded.binaries import Binaries

from .rig import KEY, OLD, Rig, control_plane, settled

_log = logging.getLogger(__name__)
MEBIBYTES = int(os.environ.get("CAPELIN_TEST_RESTORE_MIB", "8"))
"""The size of the large restore. 1024 gives the figure."""
REQUEST = "20260131T030000Z@2026-01-31T04:00:00Z"
BUMP = 10**9


async def snapshot(rig: Rig, file: Path) -> None:
    """Save a snapshot, as in a backup."""
    with await asyncio.to_thread(file.open, "wb") as target:
        async with rig.backend.etcd(KEY) as etcd:
            async for piece in etcd.snapshot():
                await asyncio.to_thread(target.write, piece)


async def pieces_of(file: Path) -> AsyncGenerator[bytes]:
    """The snapshot in a file, as from a store."""
    with await asyncio.to_thread(file.open, "rb") as source:
        while piece := await asyncio.to_thread(source.read, 2**20):
            yield piece


async def restore(
    rig: Rig, desired: ControlPlane, file: Path, request: str = REQUEST, bump: int = BUMP
) -> None:
    """Restore a snapshot."""

    desired = replace(desired, restore=request)
    assert (await rig.reconcile(desired)).restore is Phase.PREPARING
    await rig.backend.prepare_restore(KEY, desired, partial(pieces_of, file), bump=bump)

    def restored(observed: Observed) -> bool:
        return observed.restore is Phase.STARTING and settled(observed)

    await rig.until(desired, restored)


async def names(client: Client) -> set[str]:
    return {found.name for found in (await client.list(ConfigMap, "default")).items}


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.needs_programs("etcdutl")
@pytest.mark.parametrize("members", [1, 3])
async def test_a_restore_returns_to_the_backup_and_clients_notice_it(
    rig: Rig, tmp_path: Path, members: int
) -> None:
    desired = replace(control_plane(OLD), etcd_replicas=members)
    await rig.until(desired, settled)
    file = tmp_path / "etcd.db"
    async with rig.client() as client:
        await client.create(ConfigMap.of("before", "default"))
        await snapshot(rig, file)
        await client.create(ConfigMap.of("after", "default"))
        listed = (await client.list(ConfigMap, "default")).resource_version
    before = rig.pids()

    await restore(rig, desired, file)

    after = rig.pids()
    assert after["relay-0"] == before["relay-0"]
    assert {name for name in before if before[name] == after.get(name)} == {"relay-0"}
    async with rig.client() as client:
        assert {"before"} <= await names(client)
        assert "after" not in await names(client)
        now = (await client.list(ConfigMap, "default")).resource_version
        assert int(now or 0) > int(listed or 0) + 10**8
        # It must list again, instead of missing the deletion.
        with pytest.raises(Expired):
            async for _ in client.watch(ConfigMap, "default", since=listed):
                pass
        await client.create(ConfigMap.of("later", "default"))
    aside = sorted(path.name for path in rig.folder.glob("etcd-*.before-restore-*"))
    assert [name.partition(".")[0] for name in aside] == [f"etcd-{i}" for i in range(members)]
    # Without the request, everything stays as it is.
    assert (await rig.reconcile(desired)).restore is None
    await rig.until(desired, settled)


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.needs_programs("etcdutl")
async def test_a_watching_client_notices_restores_in_any_order_of_backups(
    rig: Rig, tmp_path: Path
) -> None:
    async def revision() -> int:
        async with rig.backend.etcd(KEY) as etcd:
            return await etcd.last_revision()

    desired = control_plane(OLD)
    await rig.until(desired, settled)
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    revisions = {first: await revision()}
    await snapshot(rig, first)
    seen = [revisions[first]]
    # The second one is of restored data, and the first one follows it.
    for number, file in enumerate((first, second, first)):
        async with rig.client() as client:
            listed = (await client.list(ConfigMap, "default")).resource_version
        request = f"20260131T030000Z@2026-01-31T04:00:0{number}Z"
        await restore(rig, desired, file, request, revision_bump(request, revisions[file]))
        async with rig.client() as client:
            with pytest.raises(Expired):
                async for _ in client.watch(ConfigMap, "default", since=listed):
                    pass
        seen.append(await revision())
        if number == 0:
            revisions[second] = await revision()
            await snapshot(rig, second)
        await rig.until(desired, settled)
    assert seen == sorted({*seen})


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.needs_programs("etcdutl")
async def test_no_api_server_runs_with_empty_data_before_a_first_restore(
    rig: Rig, tmp_path: Path
) -> None:
    desired = control_plane(OLD)
    await rig.until(desired, settled)
    file = tmp_path / "etcd.db"
    async with rig.client() as client:
        await client.create(ConfigMap.of("before", "default"))
        await snapshot(rig, file)
    await rig.backend.delete(KEY)
    rig.endpoint = None

    lost = replace(desired, restore=REQUEST)
    # Something else that changes: by then, an API server would run.
    await rig.until(lost, lambda observed: "relay-0" in observed.ready)
    for _ in range(5):
        observed = await rig.reconcile(lost)
        assert observed.restore is Phase.PREPARING
        assert not observed.answers
        assert rig.pids().keys() == {"relay-0"}
    await restore(rig, desired, file)
    async with rig.client() as client:
        assert "before" in await names(client)


@pytest.mark.integration
@pytest.mark.timeout(120)
@pytest.mark.needs_programs("etcdutl")
async def test_a_snapshot_is_tried_out(rig: Rig, tmp_path: Path) -> None:
    await rig.until(control_plane(OLD), settled)
    file = tmp_path / "etcd.db"
    async with rig.backend.etcd(KEY) as etcd:
        status, keys = await etcd.status(), await etcd.count_keys()
    await snapshot(rig, file)
    binaries = await Binaries().fetch(["etcd", "etcdutl"])
    etcd_path, etcdutl = binaries["etcd"].path, binaries["etcdutl"].path
    trial = await try_snapshot(etcd_path, etcdutl, file)
    assert trial.revision >= status.revision
    assert trial.keys >= keys > 100
    assert not await asyncio.to_thread((tmp_path / "trial").exists)

    content = bytearray(await asyncio.to_thread(file.read_bytes))
    content[5000] ^= 1
    await asyncio.to_thread(file.write_bytes, content)
    with pytest.raises(BackupError, match="cannot restore"):
        await try_snapshot(etcd_path, etcdutl, file)


@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.needs_programs("etcdutl")
async def test_the_api_serves_again_soon_after_a_large_restore(rig: Rig, tmp_path: Path) -> None:
    desired = control_plane(OLD)
    await rig.until(desired, settled)
    file = tmp_path / "etcd.db"
    await fill(rig, MEBIBYTES)
    await snapshot(rig, file)
    size = await asyncio.to_thread(os.path.getsize, file)
    assert size > MEBIBYTES * 2**20

    began = time.monotonic()
    await restore(rig, desired, file)
    seconds = time.monotonic() - began

    _log.info("%.0f MiB restored in %.1f s", size / 2**20, seconds)
    async with rig.backend.etcd(KEY) as etcd:
        assert await etcd.count_keys() > MEBIBYTES


async def fill(rig: Rig, mebibytes: int) -> None:
    """Write values that do not compress to etcd."""
    async with rig.backend.etcd(KEY) as etcd:
        for index in range(2 * mebibytes):
            entry = {
                "key": base64.b64encode(f"/filler/{index}".encode()).decode(),
                "value": base64.b64encode(os.urandom(2**19)).decode(),
            }
            async with etcd.session.post(f"{etcd.url}/v3/kv/put", json=entry) as response:
                assert response.status == 200, await response.text()


def folder_with_prepared_data(path: Path) -> StateDir:
    """A state directory with three members, and with restored data for the first one."""
    state_dir = StateDir(path, "127.64.0.9")
    for folder, content in (
        *((state_dir.etcd_data(index), "old") for index in range(3)),
        (path / "restore-prepared" / "etcd-0", "new"),
    ):
        (folder / "member" / "wal").mkdir(parents=True)
        (folder / "member" / "wal" / "0.wal").write_text(content)
    for index in range(3):
        member_data.mark_joined(state_dir, index)
    record = f'{{"request": "{REQUEST}", "members": [0]}}'
    (path / "restore-prepared" / "restore.json").write_text(record)
    return state_dir


class Killed(BaseException):
    """The provider died."""


def dying(function: Callable[..., object], at: list[int], *, before: bool) -> Callable[..., object]:
    def wrapper(*arguments: object, **options: object) -> object:
        at[0] -= 1
        if at[0] < 0 and before:
            raise Killed
        result = function(*arguments, **options)
        if at[0] < 0:
            raise Killed
        return result

    return wrapper


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("changes", range(16))
def test_a_provider_that_dies_at_any_write_leaves_a_restore_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int, before: bool
) -> None:
    state_dir, now = folder_with_prepared_data(tmp_path), datetime.now(UTC)
    with monkeypatch.context() as patched:
        left = [changes]
        for name in ("rename", "replace", "unlink"):
            patched.setattr(Path, name, dying(getattr(Path, name), left, before=before))
        patched.setattr(os, "unlink", dying(os.unlink, left, before=before))
        patched.setattr(os, "rmdir", dying(os.rmdir, left, before=before))
        try:
            restore_files.replace_data(state_dir, now)
        except Killed:
            files = restore_files.read_restore(state_dir, REQUEST, 1)
            assert files.replacing or files.prepared or files.restored
    if restore_files.read_restore(state_dir, REQUEST, 1).restored is None or (
        restore_files.read_restore(state_dir, REQUEST, 1).replacing
    ):
        restore_files.replace_data(state_dir, now)

    files = restore_files.read_restore(state_dir, REQUEST, 1)
    assert (files.prepared, files.replacing, files.restored) == (None, False, REQUEST)
    assert (state_dir.etcd_data(0) / "member/wal/0.wal").read_text() == "new"
    assert member_data.joined_members(state_dir) == {0}
    assert not state_dir.etcd_data(1).exists()
    for index in range(3):
        (aside,) = tmp_path.glob(f"etcd-{index}.before-restore-*")
        assert (aside / "member/wal/0.wal").read_text() == "old"


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.needs_programs("etcdutl")
async def test_another_provider_completes_a_restore(rig: Rig, tmp_path: Path) -> None:
    desired = control_plane(OLD)
    await rig.until(desired, settled)
    file = tmp_path / "etcd.db"
    async with rig.client() as client:
        await snapshot(rig, file)
        await client.create(ConfigMap.of("after", "default"))

    wanted = replace(desired, restore=REQUEST)
    await rig.reconcile(wanted)
    await rig.backend.prepare_restore(KEY, wanted, partial(pieces_of, file), bump=BUMP)
    await rig.reconcile(wanted)
    # It dies while everything stops, and the user withdraws the request after the point of no
    # return.
    await rig.backend.release(KEY)
    state_dir = StateDir(rig.folder, rig.folder.name)
    await rig.allocate(wanted)

    def replacing(observed: Observed) -> bool:
        return observed.restore in {Phase.REPLACING, Phase.STARTING}

    await rig.until(wanted, replacing)
    await rig.backend.release(KEY)
    await rig.until(wanted, lambda found: found.restore is Phase.STARTING)
    await rig.backend.release(KEY)
    await rig.until(desired, settled)
    assert restore_files.read_restore(state_dir, REQUEST, 1).restored == REQUEST
    async with rig.client() as client:
        with pytest.raises(NotFound):
            await client.get(ConfigMap, "after", "default")
    await until(lambda: _is_clean(state_dir))


async def _is_clean(state_dir: StateDir) -> bool:
    return not list(state_dir.path.glob("restore-*"))
