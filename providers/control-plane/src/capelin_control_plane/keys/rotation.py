"""Rotation of the certificate authorities and of the service account key: its stages. Pure.

Components and clients do not change at the same moment. So everything first trusts old and new,
then the new ones sign, and the old ones are dropped as soon as no client needs them. A stage
begins when every component runs with the last one. New certificates come with the new CA's
certificate that the old CA has signed, so clients that trust only the old CA accept them.
"""

import base64
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from capelin.pki import KeyPair, cross_sign
from pydantic import AwareDatetime, NonNegativeInt, TypeAdapter

from capelin_control_plane.desired.control_plane import RotationStage, rotation_stage

Purpose = Literal["ca", "etcd", "proxy", "sa"]
PURPOSES: Final[tuple[Purpose, ...]] = ("ca", "etcd", "proxy", "sa")
_MOST_CROSSES: Final = 3
"""Each is sent in every handshake. A client that trusts only an older CA has to be updated."""
TOKEN_LIFETIME: Final = timedelta(minutes=70)
"""The kubelet renews tokens of pods, which last an hour, after four fifths of it."""
_MOST_NAMES: Final = 5
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Former:
    """A CA or service account key that does not sign: the next one, or the last one."""

    public: str
    """The certificate or the public key."""
    private: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The state of one Secret's rotation, which the Secret itself contains."""

    created: AwareDatetime = _LONG_AGO
    """When the newest CA or key was created."""
    step: NonNegativeInt = 0
    """The number of steps since the Secret was created: four for each rotation."""
    since: AwareDatetime | None = None
    """When it took the last step."""
    other: Former | None = None
    crosses: tuple[str, ...] = ()
    """The signing CA's certificates from former CAs, the newest first."""
    identity: str = ""
    """SHA-256 of the certificate of the first CA, which identifies the cluster."""

    @property
    def stage(self) -> RotationStage | None:
        """The stage. None without a rotation in progress."""
        return rotation_stage(self.step)


@dataclass(frozen=True, slots=True)
class Keys:
    """The content of a Secret with a CA or the service account key."""

    signer: KeyPair
    """Of the service account key, the public key is in the place of the certificate."""
    rotation: Rotation = Rotation()
    trusted: tuple[bytes, ...] = ()
    """Other certificates or public keys in the Secret."""
    own: bool = True
    """Whether the provider may change the Secret."""

    @property
    def bundle(self) -> bytes:
        """Everything that is trusted, the signer first."""
        return self.signer.certificate_pem + b"".join(self.trusted)

    @property
    def identity(self) -> str:
        """SHA-256 of the certificate of the first CA."""
        return self.rotation.identity or fingerprint(self.signer.certificate_pem)


_ROTATION = TypeAdapter(Rotation)


def read_rotation(data: bytes | None) -> Rotation:
    """The state in a Secret. An old Secret has none.

    Raises:
        ValueError: it is damaged. The message contains no key.
    """
    if data is None:
        return Rotation()
    try:
        rotation = _ROTATION.validate_json(data)
    except ValueError:
        raise ValueError("its entry `rotation` is damaged") from None
    if (rotation.stage is None) != (rotation.other is None):
        raise ValueError("its entry `rotation` lacks a CA or key, or has one too many")
    return rotation


def write_rotation(rotation: Rotation) -> bytes:
    return _ROTATION.dump_json(rotation)


def fingerprint(certificate_pem: bytes) -> str:
    """SHA-256 of a certificate in PEM."""
    return hashlib.sha256(certificate_pem).hexdigest()


def advanced(keys: Keys, new: Callable[[], KeyPair], now: datetime) -> Keys:
    """The keys after the next step.

    Args:
        keys: The present ones.
        new: Creates a successor, which only the first step needs.
        now: The present.
    """
    rotation = replace(keys.rotation, step=keys.rotation.step + 1, since=now)
    other = rotation.other
    # A user may have added certificates to those that clients trust.
    added = tuple(it for it in keys.trusted if other is None or it.decode() != other.public)
    match keys.rotation.stage:
        case None:
            pair = new()
            public = pair.certificate_pem
            rotation = replace(
                rotation,
                created=now,
                other=Former(public.decode(), pair.private_key_pem.decode()),
                identity=keys.identity,
            )
            return Keys(keys.signer, rotation, (public, *added))
        case "Trusting" if other is not None:
            signer = KeyPair(other.public.encode(), other.private.encode())
            former = keys.signer
            rotation = replace(
                rotation,
                other=Former(former.certificate_pem.decode(), former.private_key_pem.decode()),
                crosses=_crossed(signer, former, rotation.crosses),
            )
            return Keys(signer, rotation, (former.certificate_pem, *added))
        case "Waiting":
            return Keys(keys.signer, replace(rotation, other=None), added)
        case _:
            return replace(keys, rotation=rotation)


def _crossed(signer: KeyPair, former: KeyPair, crosses: tuple[str, ...]) -> tuple[str, ...]:
    if b"CERTIFICATE" not in signer.certificate_pem:
        return ()
    cross = cross_sign(signer.certificate_pem, former).decode()
    return (cross, *crosses)[:_MOST_CROSSES]


def behind(keys: Mapping[Purpose, Keys]) -> tuple[Purpose, ...]:
    """The Secrets that a provider did not change before it ended. They take the same step."""
    newest = max(of.rotation.step for of in keys.values())
    return tuple(purpose for purpose in PURPOSES if keys[purpose].rotation.step < newest)


def outdated_secrets(keys: Mapping[Purpose, Keys], used: int) -> tuple[Purpose, ...]:
    """The Secrets that are older than the CAs in use, which clients already need.

    Args:
        keys: The keys of each Secret.
        used: The step that components have taken.
    """
    # Those that are one step behind follow.
    needed = max(used, max(of.rotation.step for of in keys.values()) - 1)
    return tuple(purpose for purpose in PURPOSES if keys[purpose].rotation.step < needed)


def is_rolling(step: int) -> bool:
    """Whether components restart for a step of a rotation in progress."""
    return rotation_stage(step) in {"Trusting", "Issuing"}


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the rotation of all CAs and keys of a control plane."""

    step: int = 0
    created: datetime = _LONG_AGO
    """When the oldest of the newest CAs and keys was created."""
    since: datetime | None = None
    """The time of the last step."""
    users: tuple[Purpose, ...] = ()
    """The CAs and keys that belong to users."""

    @property
    def stage(self) -> RotationStage | None:
        """The stage. None without a rotation in progress."""
        return rotation_stage(self.step)

    @classmethod
    def of(cls, keys: Mapping[Purpose, Keys]) -> "Progress":
        """The progress of keys that have all taken the same step."""
        rotations = [of.rotation for of in keys.values()]
        return cls(
            step=min(rotation.step for rotation in rotations),
            created=min(rotation.created for rotation in rotations),
            since=max((rotation.since for rotation in rotations if rotation.since), default=None),
            users=tuple(purpose for purpose in PURPOSES if not keys[purpose].own),
        )


NO_ROTATION: Final = Progress()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A Node whose kubelet may have a certificate of the old CA."""

    name: str
    created: datetime
    simulated: bool = False
    """Whether no kubelet exists."""
    authority: str | None = None
    """The CA of the kubelet's certificate, by the Node's annotation."""


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of a workload cluster, as far as the API shows them."""

    nodes: Sequence[NodeFacts] = ()
    tokens: Sequence[str] = ()
    """Secrets with tokens that the old service account key has signed."""
    machines: Sequence[str] = ()
    """Machines that were created before the new CA signed, and have not joined."""


def authority_name(certificate_pem: bytes) -> str:
    """A short name of a CA, for annotations of Nodes."""
    return fingerprint(certificate_pem)[:12]


def waiting_for(
    clients: Clients,
    *,
    authority: str,
    since: datetime,
    now: datetime,
    confirmed: bool,
    awake_since: datetime | None = None,
) -> tuple[str, ...]:
    """The clients that still need the old CA or key. The order and the words are stable.

    Args:
        clients: The clients that the API shows.
        authority: The name of the new CA.
        since: When all components had certificates of the new CA.
        now: The present.
        confirmed: Whether a user confirmed that clients which the API does not show are ready.
        awake_since: When the API last served again after a sleep. Nothing was renewed before.
    """
    nodes = [
        node.name
        for node in clients.nodes
        if not node.simulated and node.created <= since and node.authority != authority
    ]
    deadline = max(since, awake_since or since) + TOKEN_LIFETIME
    return tuple(
        filter(
            None,
            (
                _listed(nodes, "Node", "whose kubelet has a certificate of the old CA"),
                _listed(clients.machines, "Machine", "with old bootstrap data that has not joined"),
                _listed(clients.tokens, "Secret", "with a token of the old service account key"),
                f"tokens of pods, until {deadline:%Y-%m-%d %H:%M} UTC" if now < deadline else "",
                "" if confirmed else "a confirmation that no copy of a kubeconfig is in use",
            ),
        )
    )


def _listed(names: Collection[str], kind: str, text: str) -> str:
    if not names:
        return ""
    shown = ", ".join(sorted(names)[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{len(names)} {kind}{'s' if len(names) > 1 else ''} {text} ({shown}{more})"


def key_id(public_key_der: bytes) -> str:
    """The key ID in the header of tokens, as API servers compute it."""
    digest = hashlib.sha256(public_key_der).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
