"""Finds backups, tries them out, and creates the data of etcd members from their snapshots."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
from capelin.programs import default_signals, run_program

from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.files import (
    list_backups,
    read_authorities,
    read_objects,
    read_snapshot,
    write_snapshot,
)
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.backup.stores import Store
from capelin_control_plane.etcd.api import EtcdApi, MembershipError

PROGRAMS: Final = ("etcd", "etcdutl")
"""The binaries that a trial restore needs. A restore needs only the second one."""
_READY_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 0.1
_TRIAL_QUOTA: Final = 16 << 30
_TRIAL_REQUEST: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class RestoredCluster:
    """The cluster that continues from a snapshot."""

    members: Mapping[str, str]
    """The peer URL of each member by its name."""
    token: str
    """Its name. Members of the old cluster have another one, and must not talk to these."""
    revision_bump: int
    """How much all revisions grow."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The content of a snapshot, as etcd itself reads it."""

    revision: int
    keys: int


async def restore_member(
    etcdutl: Path, snapshot: Path, cluster: RestoredCluster, name: str, data: Path
) -> None:
    """Create the data directory of one member of a new cluster from a snapshot.

    The revision grows, and the earlier history counts as compacted. So every client lists again,
    instead of waiting for events that never come.

    Args:
        etcdutl: The program.
        snapshot: The snapshot with its hash.
        cluster: The new cluster.
        name: The name of the member.
        data: The data directory, which must not exist.

    Raises:
        BackupError: etcdutl refuses the snapshot.
    """
    await _run(
        str(etcdutl),
        *("snapshot", "restore", str(snapshot)),
        f"--name={name}",
        f"--initial-cluster={','.join(f'{peer}={url}' for peer, url in cluster.members.items())}",
        f"--initial-cluster-token={cluster.token}",
        f"--initial-advertise-peer-urls={cluster.members[name]}",
        f"--data-dir={data}",
        f"--bump-revision={cluster.revision_bump}",
        "--mark-compacted",
    )


async def try_snapshot(etcd: Path, etcdutl: Path, snapshot: Path) -> Trial:
    """Restore a snapshot into a throw-away etcd next to it, and read its content.

    The path has to be absolute.

    Raises:
        BackupError: the snapshot cannot be restored or read.
    """
    try:
        async with throw_away_etcd(etcd, etcdutl, snapshot) as api:
            return Trial((await api.status()).revision, await api.count_keys())
    except MembershipError as error:
        raise BackupError(f"the restored etcd does not answer: {error}") from error


@asynccontextmanager
async def throw_away_etcd(etcd: Path, etcdutl: Path, snapshot: Path) -> AsyncGenerator[EtcdApi]:
    """An etcd with the content of a snapshot, in a folder next to it.

    Only this user can connect: the sockets are in a private folder.
    """
    data = snapshot.with_name("trial")
    peer_url = "http://localhost:2380"
    await _run(
        str(etcdutl),
        *("snapshot", "restore", str(snapshot)),
        "--name=trial",
        f"--initial-cluster=trial={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--data-dir={data}",
    )
    # Paths of sockets are short: the snapshot's folder may be deep.
    with TemporaryDirectory(prefix="etcd-") as sockets:
        process = await asyncio.create_subprocess_exec(
            str(etcd),
            "--name=trial",
            f"--data-dir={data}",
            f"--listen-client-urls=unix://{sockets}/client",
            "--advertise-client-urls=http://localhost:2379",
            # etcd reads only the host of this URL: it is a file in the working directory.
            "--listen-peer-urls=unix://peer:0",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=trial={peer_url}",
            f"--quota-backend-bytes={_TRIAL_QUOTA}",
            f"--max-request-bytes={_TRIAL_REQUEST}",
            "--unsafe-no-fsync",
            "--log-level=error",
            cwd=sockets,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            preexec_fn=default_signals(),
        )
        try:
            connector = aiohttp.UnixConnector(f"{sockets}/client")
            async with aiohttp.ClientSession(connector=connector) as session:
                api = EtcdApi(session, "http://localhost")
                await _until_ready(api, process)
                yield api
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await asyncio.to_thread(shutil.rmtree, data, ignore_errors=True)


async def _until_ready(api: EtcdApi, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            with suppress(MembershipError):
                if (await api.status()).has_leader:
                    return
            if process.returncode is not None:
                raise BackupError(f"etcd ended with code {process.returncode}")
            await asyncio.sleep(_RETRY_SECONDS)


async def _run(*command: str) -> None:
    ended = await run_program(*command)
    if ended.code != 0:
        last = ended.errors.splitlines()[-1:] or ["no message"]
        raise BackupError(f"etcdutl cannot restore the snapshot: {last[0]}")


@dataclass(frozen=True, slots=True)
class StoredBackup:
    """A backup in a folder."""

    folder: Path
    name: str
    manifest: Manifest | None
    """None if the backup is damaged."""

    @property
    def cluster(self) -> str:
        """The name of its Cluster."""
        return self.folder.name

    @property
    def namespace(self) -> str:
        """The namespace of its Cluster."""
        return self.folder.parent.parent.name


def stored_backups(root: Path, namespace: str = "*", cluster: str = "*") -> list[StoredBackup]:
    """The backups below the administrator's folder, the newest of each cluster first."""
    found: list[StoredBackup] = []
    for folder in sorted(root.glob(f"{namespace}/*/{cluster}")):
        listed = list_backups(folder)
        backups = {manifest.name: manifest for manifest in listed.manifests}
        names = sorted({*backups, *listed.damaged}, reverse=True)
        found += [StoredBackup(folder, name, backups.get(name)) for name in names]
    return found


async def verify_backup(
    store: Store, manifest: Manifest, key: bytes, programs: tuple[Path, Path], work: Path
) -> Trial:
    """Decrypt a backup, restore it into a throw-away etcd, and read its content.

    Args:
        store: The store that has the backup.
        manifest: The backup.
        key: The key that encrypts it.
        programs: etcd and etcdutl.
        work: A private folder with room for two copies of the snapshot.

    Raises:
        BackupError: it cannot be restored.
        StoreError: the store cannot be read.
    """
    await read_authorities(store, manifest, key)
    await read_objects(store, manifest, key)
    with TemporaryDirectory(prefix="verify-", dir=work) as folder:
        snapshot = Path(folder, "etcd.db")
        await write_snapshot(snapshot, read_snapshot(store, manifest, key))
        trial = await try_snapshot(*programs, snapshot)
    if trial.revision < manifest.revision:
        raise BackupError(
            f"backup {manifest.name} ends at revision {trial.revision}, before the revision"
            f" {manifest.revision} of its manifest"
        )
    return trial
