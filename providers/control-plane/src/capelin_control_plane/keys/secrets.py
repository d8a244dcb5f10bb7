"""The secrets of a control plane in the management cluster: CAs, keys and the kubeconfig."""

import asyncio
import base64
from collections.abc import Mapping
from datetime import datetime

from capelin.api import OwnerReference
from capelin.api.core import Secret
from capelin.client import AlreadyExists, Client, Config, Server, User, new_kubeconfig
from capelin.contract import (
    CERTIFICATE_KEY,
    KUBECONFIG_KEY,
    PRIVATE_KEY_KEY,
    certificate_secret,
    controller_of,
    ensure_owner,
    is_controlled_by,
    kubeconfig_reason,
    kubeconfig_secret,
    reference_to,
    secret_name,
    secret_problem,
)
from capelin.pki import (
    InvalidPemError,
    KeyPair,
    ServiceAccountKeys,
    issue,
    new_ca,
    new_service_account_keys,
    read_ca,
    read_service_account_keys,
    split_pem,
)
from capelin.provider import Blocked

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Endpoint
from capelin_control_plane.keys.certificates import Authorities, Authority, issued_before
from capelin_control_plane.keys.rotation import (
    PURPOSES,
    Keys,
    Progress,
    Purpose,
    Rotation,
    advanced,
    behind,
    outdated_secrets,
    read_rotation,
    write_rotation,
)

AUTHORITIES_ANNOTATION = "controlplane.cluster.x-k8s.io/capelin-authorities"
"""The step of rotations that components have taken. It outlives the Secrets and a move."""
_ROTATION_KEY = "rotation"
_MOST_DIGITS = 10

CREATED_ANNOTATION = "controlplane.cluster.x-k8s.io/capelin-created"
"""Marks secrets that the provider has created. It changes no others."""

_ADMINISTRATOR = "kubernetes-admin"
_ADMINISTRATORS = "system:masters"
_CA_NAMES: dict[Authority, str] = {"ca": "kubernetes", "etcd": "etcd-ca", "proxy": "front-proxy-ca"}


async def ensure_authorities(
    client: Client,
    control_plane: CapelinControlPlane,
    desired: ControlPlane,
    *,
    may_create: bool,
) -> Authorities:
    """The CAs and service account keys. Those that are missing are created if they may be.

    They may be created as long as nothing was signed with others.

    Raises:
        Blocked: a secret is missing or cannot be used.
    """
    # A new control plane must not start with CAs that were just deleted with an old one.
    reader = client if may_create else client.cached

    async def ensure(purpose: Purpose) -> Secret | None:
        name = secret_name(desired.cluster, purpose)
        secret = await find_secret(reader, control_plane, name, is_new=may_create)
        if secret is None and may_create:
            return await _create(client, control_plane, desired, purpose)
        return secret

    found = dict(zip(PURPOSES, await asyncio.gather(*map(ensure, PURPOSES)), strict=True))
    secrets: dict[Purpose, Secret] = {
        purpose: secret for purpose, secret in found.items() if secret is not None
    }
    if len(secrets) < len(PURPOSES):
        missing = [
            secret_name(desired.cluster, purpose) for purpose in PURPOSES if purpose not in secrets
        ]
        raise Blocked(
            Reason.CERTIFICATES_MISSING,
            f"missing in namespace {desired.namespace}: secret {', '.join(missing)}. New ones would"
            " invalidate everything that they signed",
            "restore them from a backup",
        )
    keys: dict[Purpose, Keys] = {
        purpose: _read_keys(purpose, secret, control_plane, desired)
        for purpose, secret in secrets.items()
    }
    _check_age(control_plane, desired, keys)
    for purpose in behind(keys):
        step = keys[purpose].rotation.step
        keys[purpose] = await advance(client, control_plane, desired, purpose, step=step)
    return _authorities(keys)


def _read_keys(
    purpose: Purpose, secret: Secret, control_plane: CapelinControlPlane, desired: ControlPlane
) -> Keys:
    """The keys in a Secret.

    Raises:
        Blocked: they cannot be used.
    """
    message = secret_problem(secret, purpose, cluster=desired.cluster)
    if message is not None:
        raise Blocked(Reason.CERTIFICATES_NOT_USABLE, message)
    public, private = secret.data.get(CERTIFICATE_KEY), secret.data.get(PRIVATE_KEY_KEY)
    own = _may_change(secret, control_plane)
    try:
        if purpose == "sa":
            keys = read_service_account_keys(public, private)
            signer = KeyPair(keys.public_key_pem, keys.private_key_pem)
        else:
            signer = read_ca(public, private, desired.now)
        rotation = read_rotation(secret.data.get(_ROTATION_KEY)) if own else Rotation()
    except (InvalidPemError, ValueError) as error:
        raise Blocked(Reason.CERTIFICATES_NOT_USABLE, f"Secret {secret.name}: {error}") from error
    trusted = [block for block in split_pem(public or b"") if block != signer.certificate_pem]
    return Keys(signer, rotation, tuple(trusted), own)


async def advance(
    client: Client,
    control_plane: CapelinControlPlane,
    desired: ControlPlane,
    purpose: Purpose,
    *,
    step: int,
) -> Keys:
    """Take the next step of a Secret's rotation, unless it has left this one already.

    The keys that are still needed stay in it.

    Raises:
        ApiError: another client has changed the Secret since.
        Blocked: the Secret is gone or cannot be used.
    """
    name = secret_name(desired.cluster, purpose)
    # The cache may be older than the last step, and no component may skip one.
    secret = await client.get(Secret, name, desired.namespace)
    keys = _read_keys(purpose, secret, control_plane, desired)
    if not keys.own:
        raise Blocked(Reason.CERTIFICATES_NOT_USABLE, f"Secret {name} belongs to a user")
    if keys.rotation.step != step:
        return keys
    try:
        following = await asyncio.to_thread(
            advanced, keys, lambda: _new_pair(desired, purpose), desired.now
        )
    except (TypeError, ValueError) as error:
        message = f"Secret {name}: its entry {_ROTATION_KEY} has an unusable CA or key"
        hint = "restore the newest one from a backup"
        raise Blocked(Reason.CERTIFICATES_NOT_USABLE, message, hint) from error
    data = {
        CERTIFICATE_KEY: following.bundle,
        PRIVATE_KEY_KEY: following.signer.private_key_pem,
        _ROTATION_KEY: write_rotation(following.rotation),
    }
    # A damaged successor must never become the CA.
    written = secret.model_copy(update={"data": {**secret.data, **data}})
    _read_keys(purpose, written, control_plane, desired)
    patch = {
        "metadata": {"resourceVersion": secret.metadata.resource_version},
        "data": {entry: base64.b64encode(content).decode() for entry, content in data.items()},
    }
    await client.patch(Secret, name, desired.namespace, patch)
    return following


def _check_age(
    control_plane: CapelinControlPlane, desired: ControlPlane, keys: Mapping[Purpose, Keys]
) -> None:
    """Check that no Secret is older than the CAs in use: clients already need newer ones."""
    used = control_plane.metadata.annotations.get(AUTHORITIES_ANNOTATION, "0")
    is_step = used.isdecimal() and len(used) < _MOST_DIGITS
    outdated = outdated_secrets(keys, int(used) if is_step else 0)
    if outdated:
        names = ", ".join(secret_name(desired.cluster, purpose) for purpose in outdated)
        raise Blocked(
            Reason.CERTIFICATES_NOT_USABLE,
            f"Secret {names}: older than the CAs and keys in use, which a rotation has created",
            "restore the newest ones from a backup",
        )


def _authorities(keys: Mapping[Purpose, Keys]) -> Authorities:
    sa = keys["sa"].signer
    return Authorities(
        ca=keys["ca"].signer,
        etcd=keys["etcd"].signer,
        proxy=keys["proxy"].signer,
        service_account=ServiceAccountKeys(sa.certificate_pem, sa.private_key_pem),
        also_trusted={purpose: b"".join(of.trusted) for purpose, of in keys.items()},
        crosses={
            name: "".join(keys[name].rotation.crosses).encode() for name in ("ca", "etcd", "proxy")
        },
        progress=Progress.of(keys),
        first=keys["ca"].identity,
    )


async def ensure_kubeconfig(
    client: Client,
    control_plane: CapelinControlPlane,
    desired: ControlPlane,
    *,
    endpoint: Endpoint,
    authorities: Authorities,
    now: datetime,
) -> None:
    """Create, correct or renew the kubeconfig secret. It never changes a secret of the user."""

    def secret_with(data: bytes) -> Secret:
        secret = kubeconfig_secret(data, cluster=desired.cluster, owner=control_plane)
        secret.metadata.annotations = {CREATED_ANNOTATION: ""}
        return secret

    name = secret_name(desired.cluster, "kubeconfig")
    data: bytes | None = None
    # The cache may only show that the Secret needs no change.
    for reader in (client.cached, client):
        present = await reader.find(Secret, name, desired.namespace)
        if present is not None and not _may_change(present, control_plane):
            return
        data = present and _usable_kubeconfig(present, desired, endpoint, authorities, now)
        if present is not None and data is not None and not _differs(present, secret_with(data)):
            return
    await client.apply(secret_with(data or _new_kubeconfig(desired, endpoint, authorities, now)))


def _usable_kubeconfig(
    present: Secret,
    desired: ControlPlane,
    endpoint: Endpoint,
    authorities: Authorities,
    now: datetime,
) -> bytes | None:
    """The kubeconfig of a Secret, unless it needs to be replaced."""
    data = present.data.get(KUBECONFIG_KEY)
    reason = kubeconfig_reason(
        data,
        endpoint.url,
        authorities.bundle("ca"),
        signer_pem=authorities.ca.certificate_pem,
        common_name=_ADMINISTRATOR,
        organizations=(_ADMINISTRATORS,),
        now=now,
    )
    if data is None or reason is not None or _is_issued_before(data, desired.renew_issued_before):
        return None
    return data


def _differs(present: Secret, desired: Secret) -> bool:
    return (
        present.data != desired.data
        or present.type != desired.type
        or not desired.metadata.labels.items() <= present.metadata.labels.items()
        or not desired.metadata.annotations.items() <= present.metadata.annotations.items()
        or desired.metadata.owner_references != present.metadata.owner_references
    )


def _new_kubeconfig(
    desired: ControlPlane, endpoint: Endpoint, authorities: Authorities, now: datetime
) -> bytes:
    pair = issue(
        authorities.ca,
        common_name=_ADMINISTRATOR,
        organizations=(_ADMINISTRATORS,),
        usages=("client",),
        now=now,
        validity=desired.validity,
        algorithm=desired.algorithm,
    )
    server = Server(endpoint.url, ca=authorities.bundle("ca"))
    user = User(certificate=pair.certificate_pem, key=pair.private_key_pem)
    return new_kubeconfig(server, user, cluster=desired.cluster, username=_ADMINISTRATOR)


async def find_secret(
    client: Client, control_plane: CapelinControlPlane, name: str, *, is_new: bool = False
) -> Secret | None:
    """A Secret with keys. If the provider has created it, it gets its lost owner again.

    Raises:
        Blocked: the control plane is new, and the Secret belongs to another one of its name.
    """
    secret = await client.find(Secret, name, control_plane.namespace)
    owner = secret and controller_of(secret.metadata.owner_references)
    if is_new and owner is not None and is_predecessor(owner, control_plane):
        raise Blocked(
            Reason.SECRETS_REMAIN,
            f"Secret {name} belongs to a deleted control plane of this name, and the garbage"
            " collector deletes it",
        )
    if secret is None or CREATED_ANNOTATION not in secret.metadata.annotations:
        # A user's own secret is never changed, nor deleted with the control plane.
        return secret
    if controller_of(secret.metadata.owner_references) is not None:
        return secret
    # A user removed its owner, without which clusterctl move would leave it behind.
    owners = ensure_owner(
        secret.metadata.owner_references, reference_to(control_plane, controller=True)
    )
    patch = {
        "metadata": {
            "resourceVersion": secret.metadata.resource_version,
            "ownerReferences": [owner.dump() for owner in owners],
        }
    }
    return await client.patch(Secret, name, control_plane.namespace, patch)


def is_predecessor(owner: OwnerReference, control_plane: CapelinControlPlane) -> bool:
    """Whether an owner was another object of the same kind and name."""
    own = reference_to(control_plane)
    same = (owner.kind, owner.name) == (own.kind, own.name)
    return same and bool(control_plane.uid) and owner.uid != control_plane.uid


async def _create(
    client: Client, control_plane: CapelinControlPlane, desired: ControlPlane, purpose: Purpose
) -> Secret:
    secret = await asyncio.to_thread(_new_secret, control_plane, desired, purpose)
    secret.metadata.annotations = {CREATED_ANNOTATION: ""}
    try:
        return await client.create(secret)
    except AlreadyExists:
        return await client.get(Secret, secret.name, desired.namespace)


def _new_secret(
    control_plane: CapelinControlPlane, desired: ControlPlane, purpose: Purpose
) -> Secret:
    pair, cluster = _new_pair(desired, purpose), desired.cluster
    secret = certificate_secret(purpose, pair, cluster=cluster, owner=control_plane)
    secret.data[_ROTATION_KEY] = write_rotation(Rotation(created=desired.now))
    return secret


def _new_pair(desired: ControlPlane, purpose: Purpose) -> KeyPair:
    if purpose == "sa":
        keys = new_service_account_keys(desired.algorithm)
        return KeyPair(keys.public_key_pem, keys.private_key_pem)
    return new_ca(_CA_NAMES[purpose], now=desired.now, algorithm=desired.algorithm)


def _may_change(secret: Secret, control_plane: CapelinControlPlane) -> bool:
    controller = controller_of(secret.metadata.owner_references)
    is_created = CREATED_ANNOTATION in secret.metadata.annotations
    return is_controlled_by(secret, control_plane) or (controller is None and is_created)


def _is_issued_before(data: bytes, moment: datetime | None) -> bool:
    certificate = Config.from_secret(data).user.certificate
    return isinstance(certificate, bytes) and issued_before(certificate, moment)
