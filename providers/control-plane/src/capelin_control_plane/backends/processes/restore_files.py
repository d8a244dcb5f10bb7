"""The files of a restore in a state directory. Each step can be repeated after any crash.

`restore-prepared` appears complete, and becomes `restore-replacing` when the old data gives way.
`restored.json` names the last restore whose data is in use.
"""

import asyncio
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from capelin_embedded.processes import marked_processes, write_private
from pydantic import TypeAdapter

from capelin_control_plane.backends import ReadSnapshot
from capelin_control_plane.backends.processes import member_data
from capelin_control_plane.backends.processes.components import etcd_peer_url
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.backup.files import write_snapshot
from capelin_control_plane.backup.restores import RestoreFiles
from capelin_control_plane.backup.snapshots import RestoredCluster, restore_member
from capelin_control_plane.etcd.rules import MOST_MEMBERS

_PARTIAL: Final = "restore-partial-"
_PREPARED: Final = "restore-prepared"
_REPLACING: Final = "restore-replacing"
_RESTORED: Final = "restored.json"
_RECORD: Final = "restore.json"
_KEPT: Final = "relay"
"""The component that runs during a restore."""


@dataclass(frozen=True, slots=True)
class _Record:
    request: str
    members: tuple[int, ...]


_ADAPTER: Final = TypeAdapter(_Record)


def read_restore(state_dir: StateDir, request: str | None, size: int) -> RestoreFiles:
    """The files of a restore. Data for another request or number of members is deleted.

    Such data was checked for the keys of its time, and not for those of a later request.
    """
    prepared = _read(state_dir.path / _PREPARED / _RECORD)
    if prepared is not None and prepared != _Record(request or "", tuple(range(size))):
        discard(state_dir)
        prepared = None
    restored = _read(state_dir.path / _RESTORED)
    return RestoreFiles(
        prepared=prepared and prepared.request,
        replacing=(state_dir.path / _REPLACING).exists(),
        restored=restored and restored.request,
    )


def is_stopped(state_dir: StateDir) -> bool:
    """Whether no process uses the data of etcd, as the kernel lists them."""
    return all(process.name.startswith(_KEPT) for process in marked_processes(state_dir.run))


async def prepare(
    state_dir: StateDir, request: str, size: int, etcdutl: Path, read: ReadSnapshot, *, bump: int
) -> None:
    """Create the data of all members. It is not in use before `replace_data`."""
    if (await asyncio.to_thread(read_restore, state_dir, request, size)).prepared == request:
        return
    await asyncio.to_thread(discard, state_dir)
    # A name of its own: a program of an earlier provider may still write.
    partial = Path(mkdtemp(prefix=_PARTIAL, dir=state_dir.path))
    try:
        snapshot = partial / "etcd.db"
        await write_snapshot(snapshot, read())
        members = {f"etcd-{index}": etcd_peer_url(state_dir, index) for index in range(size)}
        cluster = RestoredCluster(members, f"{state_dir.address}-{request}", bump)
        for name in members:
            await restore_member(etcdutl, snapshot, cluster, name, partial / name)
        await asyncio.to_thread(_finish, state_dir, partial, _Record(request, tuple(range(size))))
    finally:
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)


def _finish(state_dir: StateDir, partial: Path, record: _Record) -> None:
    (partial / "etcd.db").unlink()
    write_private(partial / _RECORD, _ADAPTER.dump_json(record), lasting=True)
    partial.rename(state_dir.path / _PREPARED)


def discard(state_dir: StateDir) -> None:
    """Delete data that was prepared and is not in use."""
    for path in (state_dir.path / _PREPARED, *state_dir.path.glob(f"{_PARTIAL}*")):
        shutil.rmtree(path, ignore_errors=True)


def replace_data(state_dir: StateDir, now: datetime) -> None:
    """Give each member its restored data. The old data is set aside.

    Nothing may use the data. After a crash, the next call continues.
    """
    replacing = state_dir.path / _REPLACING
    if not replacing.exists():
        (state_dir.path / _PREPARED).rename(replacing)
    record = _read(replacing / _RECORD)
    if record is None:
        # The last one died while it deleted the folder.
        shutil.rmtree(replacing)
        return
    for index in range(MOST_MEMBERS):
        data, restored = state_dir.etcd_data(index), replacing / f"etcd-{index}"
        if data.exists() and (restored.exists() or index not in record.members):
            member_data.set_aside(state_dir, index, now, why="before-restore")
        if restored.exists():
            restored.rename(data)
        if index in record.members:
            # Otherwise only those that had joined before would start, without a quorum.
            member_data.mark_joined(state_dir, index)
        else:
            member_data.unmark_joined(state_dir, index)
    write_private(state_dir.path / _RESTORED, _ADAPTER.dump_json(record), lasting=True)
    shutil.rmtree(replacing)


def _read(path: Path) -> _Record | None:
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
