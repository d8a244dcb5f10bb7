"""Finds backups below the administrator's folder, and tries out those of any store."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.files import (
    list_backups,
    read_authorities,
    read_objects,
    read_snapshot,
    write_snapshot,
)
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.backup.snapshots import Trial, try_snapshot
from capelin_control_plane.backup.stores import Store


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
