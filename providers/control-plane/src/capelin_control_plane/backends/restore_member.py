"""Restores the data of one etcd member, as the program of a pod.

The pod has the volume of the member, and no other access. The provider sends the snapshot through a
forwarded port.
"""

import argparse
import asyncio
import os
import shutil
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Final

from capelin_embedded.processes import private_folder

from capelin_control_plane.backends import ReadSnapshot
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.snapshots import RestoredCluster, restore_member

PORT: Final = 2382
"""At the loopback address of the pod: only the provider reaches it, through the API server."""
DATA: Final = "data"
"""The folder with the restored data, in the folder of the restore."""
_FOLDERS: Final = ("data", "restored-*")
"""Where the volume of a member has data, from before and after a restore."""
_LENGTH: Final = struct.Struct(">I")
_LONGEST_PIECE: Final = 16 << 20
_READY: Final = b"ready\n"
_COMPLETE: Final = b"complete\n"
_IDLE_SECONDS: Final = 60.0


class NotReceivedError(Exception):
    """The pod did not receive the snapshot."""


async def send_snapshot(port: int, read: ReadSnapshot) -> None:
    """Send a snapshot to the pod behind a forwarded port.

    Raises:
        NotReceivedError: the pod does not receive snapshots, or the connection broke.
        BackupError: the snapshot is damaged.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                if await reader.readline() != _READY:
                    raise NotReceivedError
            async with aclosing(read()) as pieces:
                async for piece in pieces:
                    if piece:
                        writer.write(_LENGTH.pack(len(piece)) + piece)
                        await writer.drain()
            # Only now is the snapshot verified.
            writer.write(_LENGTH.pack(0))
            await writer.drain()
            async with asyncio.timeout(_IDLE_SECONDS):
                answer = await reader.readline()
        finally:
            writer.close()
    except (OSError, TimeoutError) as error:
        raise NotReceivedError from error
    if answer != _COMPLETE:
        raise NotReceivedError


def receive_snapshot(target: Path, listener: socket.socket) -> None:
    """Wait until a provider has sent a complete snapshot."""
    while not target.exists():
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as source:
            # An earlier provider may have died without closing its connection.
            connection.settimeout(_IDLE_SECONDS)
            with suppress(OSError):
                connection.sendall(_READY)
                _receive(source, target)
                connection.sendall(_COMPLETE)


def _receive(source: BufferedReader, target: Path) -> None:
    partial = target.with_suffix(".partial")
    with partial.open("wb") as file:
        while length := _LENGTH.unpack(_read(source, _LENGTH.size))[0]:
            file.write(_read(source, min(length, _LONGEST_PIECE)))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(target)


def _read(source: BufferedReader, size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise OSError("the connection ended before the snapshot was complete")
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRestore:
    """A restore of one member."""

    volume: Path
    """The volume of the member."""
    folder: str
    """The folder of this restore in it."""
    in_use: str
    """The folder in it with the data that the member has now."""
    name: str
    """The name of the member."""
    members: Mapping[str, str]
    """The peer URL of each member by its name."""
    token: str
    """The name of the new cluster."""
    revision_bump: int
    """How much all revisions grow. It is the same for all members."""

    def run(self, listener: socket.socket, etcdutl: Path = Path("etcdutl")) -> None:
        """Create the data of the member from the snapshot that a provider sends.

        Raises:
            BackupError: etcdutl refuses the snapshot.
        """
        # Data that an earlier restore set aside, and an incomplete attempt of this one.
        for pattern in _FOLDERS:
            for path in self.volume.glob(pattern):
                if path.name != self.in_use:
                    shutil.rmtree(path)
        work = private_folder(self.volume / self.folder)
        snapshot = work / "snapshot.db"
        with listener:
            receive_snapshot(snapshot, listener)
        cluster = RestoredCluster(self.members, self.token, self.revision_bump)
        asyncio.run(restore_member(etcdutl, snapshot, cluster, self.name, work / DATA))
        snapshot.unlink()


def main(arguments: list[str] | None = None) -> int:
    """Restore a member. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Restores the data of one etcd member in a pod.")
    parser.add_argument("--volume", type=Path, required=True, help="Volume of the member.")
    parser.add_argument("--folder", required=True, help="Folder of this restore in the volume.")
    parser.add_argument("--in-use", required=True, help="Folder of the data in use.")
    parser.add_argument("--name", required=True, help="Name of the member.")
    parser.add_argument("--token", required=True, help="Name of the new cluster.")
    bump = "How much all revisions grow."
    parser.add_argument("--bump-revision", type=int, required=True, help=bump)
    parser.add_argument("members", nargs="+", help="The members, as NAME=URL.")
    options = parser.parse_args(arguments)
    task = MemberRestore(
        volume=options.volume,
        folder=options.folder,
        in_use=options.in_use,
        name=options.name,
        members=dict(member.split("=", 1) for member in options.members),
        token=options.token,
        revision_bump=options.bump_revision,
    )
    try:
        task.run(socket.create_server(("127.0.0.1", PORT)))
    except (BackupError, OSError) as error:
        # The kubelet puts the last line into the status of the pod.
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
