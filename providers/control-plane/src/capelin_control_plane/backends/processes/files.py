"""The files of a control plane: certificates, kubeconfigs, the plan, the relay's targets."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from capelin.embedded.processes import Command, Limits, private_folder, write_private
from capelin.pki import KeyPair

from capelin_control_plane.backends.processes.composition import (
    component_kubeconfig,
    kubeconfig_path,
    service_account_files,
)
from capelin_control_plane.backends.processes.places import Place
from capelin_control_plane.certificates import Authorities, leaves, next_renewal, reissued
from capelin_control_plane.desired import ControlPlane
from capelin_control_plane.plan import Instance, Plan

_BEGIN = b"-----BEGIN "


def write_certificates(
    place: Place, wanted: ControlPlane, authorities: Authorities, host: str, now: datetime
) -> datetime | None:
    """Make what is missing or due; when the next one will be due."""
    private_folder(place.folder / "pki")
    for name in ("ca", "etcd", "proxy"):
        _keep(place.authority(name), authorities.of(name).certificate_pem)
    _keep(place.leaf("ca-signing"), _joined(authorities.ca))
    signing, public = service_account_files(place)
    _keep(signing, authorities.service_account.private_key_pem)
    _keep(public, authorities.service_account.public_key_pem)
    present: dict[str, KeyPair] = {}
    for leaf in leaves(wanted, host, [place.address]):
        path = place.leaf(leaf.name)
        pair = read_leaf(path)
        fresh = reissued(wanted, leaf, authorities.of(leaf.authority), pair, now)
        if fresh is not None:
            write_private(path, _joined(fresh))
        if kept := fresh or pair:
            present[leaf.name] = kept
    return next_renewal(wanted, present)


def write_kubeconfigs(place: Place, server: str) -> None:
    """Tell the components that talk to the API server how to."""
    for leaf in ("controller-manager", "scheduler"):
        _keep(kubeconfig_path(place, leaf), component_kubeconfig(place, leaf, server))


def write_targets(place: Place, targets: Iterable[str]) -> bool:
    """Say which API servers the relay hands connections to, and whether that is news."""
    return _keep(place.targets, "".join(f"{target}\n" for target in targets).encode())


def read_leaf(path: Path) -> KeyPair | None:
    """A certificate and its key, from the file that holds both."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    key = content.rfind(_BEGIN)
    return KeyPair(content[:key], content[key:]) if key > 0 else None


def read_plan(place: Place) -> Plan:
    """What was to run when it was last said; nothing where nothing was, or nobody can read it."""
    try:
        instances = json.loads(place.plan.read_bytes())
    except (FileNotFoundError, ValueError):
        # One that the machine did not finish before it lost power: nothing runs since then.
        return Plan()
    return Plan(
        tuple(
            Instance(
                one["component"],
                one["slot"],
                one["version"],
                Command(
                    tuple(one["command"]["arguments"]),
                    one["command"]["environment"],
                    limits=Limits(**one["command"]["limits"]),
                ),
                rejoined=one.get("rejoined", False),
            )
            for one in instances
        )
    )


def write_plan(place: Place, plan: Plan) -> None:
    """Remember what is to run."""
    instances = [asdict(one) for one in plan.instances]
    write_private(place.plan, json.dumps(instances, default=str).encode(), lasting=True)


def _joined(pair: KeyPair) -> bytes:
    return pair.certificate_pem + pair.private_key_pem


def _keep(path: Path, content: bytes) -> bool:
    try:
        if path.read_bytes() == content:
            return False
    except FileNotFoundError:
        pass
    write_private(path, content)
    return True
