"""The data of etcd members on processes: whether it exists, and whether a member lost it."""

import shutil
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path

from capelin.client import tls_context
from capelin_embedded.processes import write_private

from capelin_control_plane.backends.processes.components import etcd_port, read_key_pair
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.etcd import api as etcd_api
from capelin_control_plane.etcd.api import EtcdApi
from capelin_control_plane.etcd.rules import MOST_MEMBERS, Loss, loss_of


def mark_joined(state_dir: StateDir, index: int) -> None:
    """Mark a member as joined: from now on, missing data means that it lost its data."""
    if has_data(state_dir, index) and not has_joined(state_dir, index):
        write_private(_mark(state_dir, index), b"")


def unmark_joined(state_dir: StateDir, index: int) -> None:
    """Let a member join as a new one."""
    _mark(state_dir, index).unlink(missing_ok=True)


def has_joined(state_dir: StateDir, index: int) -> bool:
    """Whether a member was ever part of its cluster."""
    return _mark(state_dir, index).exists()


def joined_members(state_dir: StateDir) -> frozenset[int]:
    """The indexes of the members that were ever part of their cluster."""
    return frozenset(index for index in range(MOST_MEMBERS) if has_joined(state_dir, index))


def has_data(state_dir: StateDir, index: int) -> bool:
    """Whether a member has a write-ahead log. Without one, etcd begins an empty cluster."""
    return any(state_dir.etcd_data(index).glob("member/wal/*.wal"))


def member_loss(state_dir: StateDir, index: int, failure: str) -> Loss | None:
    """The loss of a member that ended with a message, or none if that is empty."""
    if has_data(state_dir, index):
        return loss_of(failure)
    return loss_of("", is_gone=has_joined(state_dir, index))


def set_aside(state_dir: StateDir, index: int, now: datetime, *, why: str = "corrupt") -> Path:
    """Move a member's data away. It is never deleted: more may be saved from it."""
    data = state_dir.etcd_data(index)
    return data.rename(data.with_name(f"{data.name}.{why}-{now:%Y%m%dT%H%M%SZ}"))


def clear_data(state_dir: StateDir, index: int, now: datetime) -> None:
    """Move away the data that a member had before its cluster removed it, and delete older data.

    A learner that fails again and again must not fill the disk.
    """
    if has_data(state_dir, index):
        for earlier in state_dir.path.glob(f"etcd-{index}.removed-*"):
            shutil.rmtree(earlier)
        set_aside(state_dir, index, now, why="removed")
    shutil.rmtree(state_dir.etcd_data(index), ignore_errors=True)


def start_refusal(state_dir: StateDir, index: int) -> str:
    """Why a member must not start: without its data it would begin an empty cluster."""
    if member_loss(state_dir, index, "") is None:
        return ""
    return (
        f"lost its data: {state_dir.etcd_data(index)} is gone. It is replaced from the others as"
        " soon as more than half of all members are ready. If they are lost too, run capelin"
        " recover cluster, or restore the folder from a backup"
    )


def connect(state_dir: StateDir, through: int) -> AbstractAsyncContextManager[EtcdApi]:
    """A connection to a member."""
    pair = read_key_pair(state_dir.certificate("apiserver-etcd-client"))
    trust = tls_context(
        state_dir.ca("etcd").read_bytes(),
        pair.certificate_pem if pair else None,
        pair.private_key_pem if pair else None,
    )
    return etcd_api.connect(f"https://{state_dir.address}:{etcd_port(through)}", trust)


def _mark(state_dir: StateDir, index: int) -> Path:
    return state_dir.path / f"etcd-{index}.joined"
