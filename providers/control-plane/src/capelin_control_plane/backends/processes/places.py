"""Where a control plane on processes lives: its address, and its private folder."""

import hashlib
import json
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, ip_address
from pathlib import Path

from capelin.embedded.addresses import NETWORK, address_of, is_free
from capelin.embedded.components import CertificateFiles, ClientFiles
from capelin.embedded.processes import private_folder, write_private

from capelin_control_plane.backends import Problem, Site
from capelin_control_plane.certificates import Authorities
from capelin_control_plane.desired import ControlPlane

_ATTEMPTS = 64
_OWNER = "owner.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a folder is. The authority tells apart two clusters of one name."""

    namespace: str
    cluster: str
    authority: str

    @property
    def identity(self) -> str:
        """What its address is derived from."""
        return f"{self.namespace}/{self.cluster}/{self.authority}"


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of a control plane and its address; every file's place follows."""

    folder: Path
    address: str

    @property
    def processes(self) -> Path:
        """The state folder of its processes, and where their logs are."""
        return self.folder / "run"

    @property
    def plan(self) -> Path:
        """What is to run, remembered over restarts of the provider."""
        return self.folder / "plan.json"

    @property
    def targets(self) -> Path:
        """The API servers that the relay hands connections to."""
        return self.folder / "targets"

    @property
    def relay(self) -> Path:
        """The relay's control socket."""
        return self.folder / "relay"

    def etcd(self, slot: int) -> Path:
        """The data of an etcd member."""
        return self.folder / f"etcd-{slot}"

    def leaf(self, name: str) -> Path:
        """A certificate and its key in one file, so that both change at once."""
        return self.folder / "pki" / f"{name}.pem"

    def authority(self, name: str) -> Path:
        """The certificate of an authority."""
        return self.folder / "pki" / f"{name}-ca.crt"

    def files(self, leaf: str) -> CertificateFiles:
        """A certificate and its key, as components want them."""
        return CertificateFiles(self.leaf(leaf), self.leaf(leaf))

    def client(self, leaf: str, authority: str) -> ClientFiles:
        """A client certificate, its key, and whom it trusts."""
        return ClientFiles(self.authority(authority), self.leaf(leaf), self.leaf(leaf))


def owner_of(namespace: str, cluster: str, ca_certificate_pem: bytes) -> Owner:
    """Whose a control plane's folder is."""
    return Owner(namespace, cluster, hashlib.sha256(ca_certificate_pem).hexdigest())


def claim(
    state: Path, wanted: ControlPlane, authorities: Authorities, address: str | None
) -> Place | Problem:
    """The place of a control plane: the one that it has, else one that nobody has."""
    owner = owner_of(wanted.namespace, wanted.cluster, authorities.ca.certificate_pem)
    private_folder(state)
    if address is not None:
        return _known(state / address, address, owner)
    for attempt in range(_ATTEMPTS):
        candidate = address_of(owner.identity, attempt)
        folder = state / candidate
        if _read_owner(folder) == owner:
            return Place(folder, candidate)
        if not folder.exists() and is_free(candidate, wanted.port):
            # Complete before it has its name: a folder without an owner never exists.
            fresh = private_folder(state / f".{candidate}.new")
            write_private(fresh / _OWNER, json.dumps(asdict(owner)).encode(), lasting=True)
            fresh.rename(folder)
            return Place(folder.resolve(), candidate)
    return Problem(
        "AddressNotAvailable",
        f"none of {_ATTEMPTS} loopback addresses in {NETWORK} has port {wanted.port} free; stop"
        " what listens on that port on all addresses, or say another one in the Cluster's"
        " spec.clusterNetwork.apiServerPort",
    )


def find(state: Path, owner: Owner) -> str | None:
    """The address of a control plane that has a place, whether or not it was ever told."""
    folders = sorted(state.glob("[0-9]*")) if state.exists() else []
    return next((folder.name for folder in folders if _read_owner(folder) == owner), None)


def is_address(said: str) -> bool:
    """Whether something said can be the address of a control plane, and so the name of a folder."""
    try:
        return str(IPv4Address(said)) == said
    except ValueError:
        return False


def belongs_to(folder: Path, namespace: str, cluster: str) -> bool:
    """Whether a folder is that of a cluster's control plane.

    Whatever its authority: when it is to go, the secret may have gone before.
    """
    found = _read_owner(folder)
    return found is not None and (found.namespace, found.cluster) == (namespace, cluster)


def site_of(place: Place, wanted: ControlPlane) -> Site:
    """Where the control plane's API answers."""
    return Site(place.address, wanted.host or place.address, wanted.port)


def listen_host(place: Place, host: str) -> str:
    """Where the relay listens: at the endpoint if that is an address of this machine."""
    try:
        address = str(ip_address(host))
    except ValueError:
        return place.address
    return address if address == place.address or is_free(address, 0) else place.address


def _known(folder: Path, address: str, owner: Owner) -> Place | Problem:
    found = _read_owner(folder) if is_address(address) else None
    if found == owner:
        return Place(folder.resolve(), address)
    if found is None:
        return Problem(
            "DataMissing",
            f"the control plane at {address} is not on this machine, and a new etcd in its place"
            " would be an empty cluster; start the provider where the data is, or bring the folder"
            f" {address} back to its state folder",
        )
    if (found.namespace, found.cluster) == (owner.namespace, owner.cluster):
        return Problem(
            "AuthorityChanged",
            f"secret {owner.cluster}-ca is not the certificate authority that the control plane"
            " was made with; bring the old one back",
        )
    return Problem(
        "AddressTaken",
        f"the control plane at {address} belongs to cluster {found.namespace}/{found.cluster}",
    )


def _read_owner(folder: Path) -> Owner | None:
    try:
        return Owner(**json.loads((folder / _OWNER).read_bytes()))
    except FileNotFoundError:
        return None
