"""The state directory of a control plane: its owner, its files, and its address."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from pathlib import Path

from capelin.controller import ObjectKey
from capelin.provider import Blocked
from capelin_embedded.addresses import NETWORK, address_of, is_free
from capelin_embedded.processes import private_folder, write_private
from pydantic import TypeAdapter

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.component_files import ComponentFiles
from capelin_control_plane.desired.instances import Instance, Plan

_ATTEMPTS = 64
_OWNER = "owner.json"
_INSTANCES = TypeAdapter(tuple[Instance, ...])


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a state directory. The CA distinguishes two clusters of one name."""

    namespace: str
    cluster: str
    authority: str
    """SHA-256 of the certificate of its first CA."""
    control_plane: str
    """The name of the control plane object. It changes when another object takes over."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Identifies the control plane, whatever the name of its object is."""
        return self.namespace, self.cluster, self.authority

    @property
    def key(self) -> ObjectKey:
        """The object that it belongs to."""
        return ObjectKey(self.namespace, self.control_plane)


@dataclass(frozen=True, slots=True)
class StateDir:
    """The private directory of a control plane, and where each of its files is."""

    path: Path
    address: str
    """The loopback address of the control plane, which also names the directory."""

    @property
    def run(self) -> Path:
        """The state directory of the supervisor, with the logs of the processes."""
        return self.path / "run"

    @property
    def plan(self) -> Path:
        """The plan, which outlives the provider."""
        return self.path / "plan.json"

    @property
    def targets(self) -> Path:
        """The API servers that the relay hands connections to."""
        return self.path / "targets"

    @property
    def relay_control(self) -> Path:
        """The relay's control socket."""
        return self.path / "relay"

    def etcd_data(self, index: int) -> Path:
        """The data directory of an etcd member."""
        return self.path / f"etcd-{index}"

    @property
    def pki(self) -> Path:
        """The directory of certificates and keys."""
        return self.path / "pki"

    @property
    def files(self) -> ComponentFiles:
        """The files that command lines name."""
        return ComponentFiles(self.pki, self.path)

    def certificate(self, name: str) -> Path:
        """A certificate and its key, in one file so that both change at once."""
        return Path(self.files.certificate(name))

    def ca(self, name: str) -> Path:
        """The certificate of a CA."""
        return Path(self.files.ca(name))

    def read_plan(self) -> Plan:
        """The plan. Empty if none is stored, or if it is damaged."""
        try:
            return Plan(_INSTANCES.validate_json(self.plan.read_bytes()))
        except (FileNotFoundError, ValueError):
            # Damaged if the machine lost power while it was written. So nothing of it runs.
            return Plan()

    def write_plan(self, plan: Plan) -> None:
        """Store the plan."""
        write_private(self.plan, _INSTANCES.dump_json(plan.instances), lasting=True)

    def read_targets(self) -> list[str]:
        """The API servers that the relay hands connections to."""
        return self.targets.read_text().split() if self.targets.exists() else []

    def write_targets(self, targets: Iterable[str]) -> bool:
        """Store the API servers for the relay's connections. Returns whether they changed."""
        return write_if_changed(self.targets, "".join(f"{line}\n" for line in targets).encode())


def find_state_dir(state: Path, owner: Owner, address: str | None, *, port: int) -> StateDir:
    """The state directory of a control plane: the one that it has, else a new one.

    Raises:
        Blocked: it is not on this machine, it belongs to another control plane, or no address is
            free.
    """
    private_folder(state)
    state_dir = _known(state, address, owner) if address is not None else _found(state, owner)
    if state_dir is None:
        return _create(state, owner, port)
    if read_owner(state_dir.path) != owner:
        _write_owner(state_dir.path, owner)
    return state_dir


def state_dirs_of(state: Path, key: ObjectKey) -> list[StateDir]:
    """The state directories that belong to an object."""
    return [
        StateDir(path.resolve(), path.name)
        for path, owner in all_owners(state).items()
        if owner is not None and owner.key == key
    ]


def all_owners(state: Path) -> dict[Path, Owner | None]:
    """The owner of each state directory. None if it cannot be read."""
    paths = sorted(state.glob("[0-9]*")) if state.exists() else []
    return {path: read_owner(path) for path in paths if is_address(path.name)}


def is_address(text: str) -> bool:
    """Whether a text can be the address of a control plane, and so the name of a directory."""
    try:
        return str(IPv4Address(text)) == text
    except ValueError:
        return False


def read_owner(path: Path) -> Owner | None:
    """The owner of a state directory. None if it is missing or cannot be read."""
    try:
        return Owner(**json.loads((path / _OWNER).read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        # It affects no other control plane. Its own is blocked with DataMissing.
        return None


def write_if_changed(path: Path, content: bytes) -> bool:
    """Write a private file unless it has this content. Returns whether it wrote the file."""
    try:
        if path.read_bytes() == content:
            return False
    except FileNotFoundError:
        pass
    write_private(path, content)
    return True


def _found(state: Path, owner: Owner) -> StateDir | None:
    for path, present in all_owners(state).items():
        if present is not None and present.identity == owner.identity:
            return StateDir(path.resolve(), path.name)
    return None


def _known(state: Path, address: str, owner: Owner) -> StateDir:
    path = state / address
    present = read_owner(path) if is_address(address) else None
    if present is None:
        raise Blocked(
            Reason.DATA_MISSING,
            f"the control plane at {address} is not on this machine, and a new etcd in its place"
            " would be an empty cluster",
            "start the provider where the data is, or restore the folder"
            f" {address} in its state folder",
        )
    if present.identity == owner.identity:
        return StateDir(path.resolve(), address)
    if (present.namespace, present.cluster) == (owner.namespace, owner.cluster):
        raise Blocked(
            Reason.AUTHORITY_CHANGED,
            f"secret {owner.cluster}-ca is not the certificate authority that the control plane"
            " was created with",
            "restore the old one",
        )
    raise Blocked(
        Reason.ADDRESS_TAKEN, f"the control plane at {address} belongs to another cluster"
    )


def _create(state: Path, owner: Owner, port: int) -> StateDir:
    for attempt in range(_ATTEMPTS):
        address = address_of("/".join(owner.identity), attempt)
        path = state / address
        if not path.exists() and is_free(address, port):
            # Renamed when it is complete: a state directory without an owner never exists.
            fresh = private_folder(state / f".{address}.new")
            _write_owner(fresh, owner)
            fresh.rename(path)
            return StateDir(path.resolve(), address)
    raise Blocked(
        Reason.ADDRESS_NOT_AVAILABLE,
        f"port {port} is not free at any of {_ATTEMPTS} loopback addresses in {NETWORK}",
        "stop what listens on that port at all addresses, or set another port in the Cluster's"
        " spec.clusterNetwork.apiServerPort",
    )


def _write_owner(path: Path, owner: Owner) -> None:
    write_private(path / _OWNER, json.dumps(asdict(owner)).encode(), lasting=True)
