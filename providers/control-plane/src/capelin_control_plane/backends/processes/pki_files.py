"""The certificates, keys and kubeconfigs in the state directory of a control plane."""

from datetime import datetime
from functools import partial
from pathlib import Path

from capelin.pki import KeyPair
from capelin_embedded.processes import private_folder

from capelin_control_plane.backends.processes.state_dir import StateDir, write_if_changed
from capelin_control_plane.desired.component_files import ENCRYPTION_PREFIX
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.keys.certificates import Authorities, key_pair, pki_files


def renew_certificates(
    state_dir: StateDir, desired: ControlPlane, authorities: Authorities, host: str
) -> datetime | None:
    """Issue every certificate that is missing or due. Returns when the next one is due."""
    own, read = [state_dir.address], partial(_read, private_folder(state_dir.pki))
    files, renew_at = pki_files(desired, authorities, read, host=host, internal=own, etcd=own)
    for name, content in files.items():
        write_if_changed(state_dir.pki / name, content)
    for dropped in state_dir.pki.glob(f"{ENCRYPTION_PREFIX}*"):
        if dropped.name not in files:
            dropped.unlink()
    return renew_at


def write_kubeconfigs(state_dir: StateDir, server: str) -> None:
    """Write the kubeconfigs of the components that are clients of the API server."""
    for certificate in ("controller-manager", "scheduler"):
        content = state_dir.files.component_kubeconfig(certificate, server)
        write_if_changed(Path(state_dir.files.kubeconfig(certificate)), content)


def read_key_pair(path: Path) -> KeyPair | None:
    """A certificate and its key, from the file that holds both."""
    return key_pair(_read(path.parent, path.name))


def _read(folder: Path, name: str) -> bytes | None:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        return None
