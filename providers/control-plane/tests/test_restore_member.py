"""The program of a restore in a pod: it receives a snapshot, and creates data in the volume."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from capelin_control_plane.backends.restore_member import (
    MemberRestore,
    NotReceivedError,
    receive_snapshot,
    send_snapshot,
)
from capelin_control_plane.backup.encryption import BackupError

SNAPSHOT = bytes(range(256)) * 8192
MEMBERS = {"one-etcd-0": "https://a:2380", "one-etcd-1": "https://b:2380"}


async def snapshot() -> AsyncGenerator[bytes]:
    for start in range(0, len(SNAPSHOT), 2**20):
        yield SNAPSHOT[start : start + 2**20]


async def damaged() -> AsyncGenerator[bytes]:
    yield SNAPSHOT
    raise BackupError("it is damaged")


@pytest.fixture
def listener() -> Generator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def port_of(listener: socket.socket) -> int:
    return listener.getsockname()[1]


def break_connection(listener: socket.socket, data: bytes) -> None:
    with socket.create_connection(listener.getsockname()) as connection:
        connection.sendall(data)


async def test_only_a_complete_snapshot_ends_the_wait(
    listener: socket.socket, tmp_path: Path
) -> None:
    target = tmp_path / "snapshot.db"
    receiving = asyncio.create_task(asyncio.to_thread(receive_snapshot, target, listener))
    await asyncio.to_thread(break_connection, listener, b"")
    await asyncio.to_thread(break_connection, listener, struct.pack(">I", 9) + b"short")
    await asyncio.to_thread(break_connection, listener, b"\xff" * 64)
    with pytest.raises(BackupError, match="damaged"):
        await send_snapshot(port_of(listener), damaged)
    assert not receiving.done()
    assert not target.exists()
    await send_snapshot(port_of(listener), snapshot)
    await receiving
    assert target.read_bytes() == SNAPSHOT


async def test_a_program_that_does_not_listen_receives_nothing(listener: socket.socket) -> None:
    port = port_of(listener)
    listener.close()
    with pytest.raises(NotReceivedError):
        await send_snapshot(port, snapshot)


def etcdutl(folder: Path) -> Path:
    """A program that takes the arguments of etcdutl, and copies the snapshot."""
    program = folder / "etcdutl"
    program.write_text(
        '#!/bin/sh\nfor flag in "$@"; do case $flag in --data-dir=*) data=${flag#*=};; esac; done\n'
        'mkdir "$data" && cp "$3" "$data/copy" && echo "$@" > "$data/arguments"\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("in_use", ["data", "restored-a"])
async def test_a_restore_keeps_the_data_in_use_and_no_other(
    listener: socket.socket, tmp_path: Path, in_use: str
) -> None:
    volume = tmp_path / "volume"
    for folder in ("data", "restored-a", "restored-b/data", "lost+found"):
        (volume / folder).mkdir(parents=True)
    restore = MemberRestore(
        volume=volume,
        folder="restored-b",
        in_use=in_use,
        name="one-etcd-1",
        members=MEMBERS,
        token="default/one@x",
        revision_bump=5,
    )
    running = asyncio.create_task(asyncio.to_thread(restore.run, listener, etcdutl(tmp_path)))
    await send_snapshot(port_of(listener), snapshot)
    await running
    assert {path.name for path in volume.iterdir()} == {in_use, "restored-b", "lost+found"}
    data = volume / "restored-b" / "data"
    assert (data / "copy").read_bytes() == SNAPSHOT
    assert "--bump-revision=5 --mark-compacted" in (data / "arguments").read_text()
    assert "--name=one-etcd-1 " in (data / "arguments").read_text()
    assert [path.name for path in data.parent.iterdir()] == ["data"]
