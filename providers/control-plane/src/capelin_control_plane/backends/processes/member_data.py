"""The data of etcd members on processes: whether it exists, and how a lost member is replaced."""

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from ssl import SSLContext

from capelin.client import tls_context
from capelin.embedded.processes import write_private
from capelin.provider import Blocked

from capelin_control_plane import etcd_api
from capelin_control_plane.backends.processes.components import etcd_peer_url, etcd_port
from capelin_control_plane.backends.processes.pki_files import read_key_pair
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.etcd import Loss, loss_of
from capelin_control_plane.etcd_api import EtcdApi, MembershipError
from capelin_control_plane.reasons import Reason


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


def start_refusal(state_dir: StateDir, index: int) -> str:
    """Why a member must not start: without its data it would begin an empty cluster."""
    if member_loss(state_dir, index, "") is None:
        return ""
    return (
        f"lost its data: {state_dir.etcd_data(index)} is gone. It is replaced from the others as"
        " soon as more than half of all members are ready. If they are lost too, run capelin"
        " recover cluster, or restore the folder from a backup"
    )


async def make_room(state_dir: StateDir, index: int, *, through: int) -> None:
    """Have the cluster expect a new member with the index of a lost one.

    Raises:
        Blocked: the member `through` does not answer or refuses the change.
    """
    url, trust = _url_and_trust(state_dir, through)
    try:
        await etcd_api.make_room(url, trust, etcd_peer_url(state_dir, index))
    except MembershipError as error:
        raise Blocked(
            Reason.ETCD_MEMBER_LOST, f"etcd-{index} cannot be replaced yet: {error}"
        ) from error


def connect(state_dir: StateDir, through: int) -> AbstractAsyncContextManager[EtcdApi]:
    return etcd_api.connect(*_url_and_trust(state_dir, through))


def _url_and_trust(state_dir: StateDir, through: int) -> tuple[str, SSLContext]:
    pair = read_key_pair(state_dir.certificate("apiserver-etcd-client"))
    trust = tls_context(
        state_dir.ca("etcd").read_bytes(),
        pair.certificate_pem if pair else None,
        pair.private_key_pem if pair else None,
    )
    return f"https://{state_dir.address}:{etcd_port(through)}", trust


def _mark(state_dir: StateDir, index: int) -> Path:
    return state_dir.path / f"etcd-{index}.joined"
