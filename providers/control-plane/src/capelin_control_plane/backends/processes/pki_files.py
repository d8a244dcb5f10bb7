"""The certificates, keys and kubeconfigs in the state directory of a control plane."""

from datetime import datetime
from pathlib import Path

from capelin.embedded.processes import private_folder, write_private
from capelin.pki import KeyPair

from capelin_control_plane.backends.processes.state_dir import StateDir, write_if_changed
from capelin_control_plane.certificates import (
    Authorities,
    desired_certificates,
    next_renewal,
    renewed,
)
from capelin_control_plane.desired import ControlPlane

_BEGIN = b"-----BEGIN "


def renew_certificates(
    state_dir: StateDir, desired: ControlPlane, authorities: Authorities, host: str
) -> datetime | None:
    """Issue every certificate that is missing or due; when the next one is due."""
    private_folder(state_dir.pki)
    for name in ("ca", "etcd", "proxy"):
        write_if_changed(state_dir.ca(name), authorities.of(name).certificate_pem)
    write_if_changed(state_dir.certificate("ca-signing"), _joined(authorities.ca))
    keys = authorities.service_account
    write_if_changed(Path(state_dir.files.service_account_key), keys.private_key_pem)
    write_if_changed(Path(state_dir.files.service_account_public_key), keys.public_key_pem)
    if desired.audit_policy is not None:
        write_if_changed(state_dir.pki / desired.audit_policy.name, desired.audit_policy.content)
    pairs: list[KeyPair] = []
    own = [state_dir.address]
    for certificate in desired_certificates(desired, host, internal=own, etcd=own):
        path = state_dir.certificate(certificate.name)
        present = read_key_pair(path)
        authority = authorities.of(certificate.authority)
        fresh = renewed(desired, certificate, authority, present, desired.now)
        if fresh is not None:
            write_private(path, _joined(fresh))
        if pair := fresh or present:
            pairs.append(pair)
    return next_renewal(desired, pairs)


def write_kubeconfigs(state_dir: StateDir, server: str) -> None:
    """Write the kubeconfigs of the components that are clients of the API server."""
    for certificate in ("controller-manager", "scheduler"):
        content = state_dir.files.component_kubeconfig(certificate, server)
        write_if_changed(Path(state_dir.files.kubeconfig(certificate)), content)


def read_key_pair(path: Path) -> KeyPair | None:
    """A certificate and its key, from the file that holds both."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    key = content.rfind(_BEGIN)
    return KeyPair(content[:key], content[key:]) if key > 0 else None


def _joined(pair: KeyPair) -> bytes:
    return pair.certificate_pem + pair.private_key_pem
