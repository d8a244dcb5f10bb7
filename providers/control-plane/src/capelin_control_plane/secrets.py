"""The secrets of a control plane in the management cluster: CAs, keys and the kubeconfig."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Literal, TypeVar

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
    service_account_secret,
)
from capelin.pki import (
    InvalidPemError,
    issue,
    new_ca,
    new_service_account_keys,
    read_ca,
    read_service_account_keys,
)
from capelin.provider import Blocked

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.certificates import Authorities, Authority, issued_before
from capelin_control_plane.desired import ControlPlane
from capelin_control_plane.instances import Endpoint
from capelin_control_plane.reasons import Reason

KeysT = TypeVar("KeysT")
Purpose = Literal["ca", "etcd", "proxy", "sa"]
PURPOSES: tuple[Purpose, ...] = ("ca", "etcd", "proxy", "sa")

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
        secret = await find_secret(reader, control_plane, name)
        if secret is None and may_create:
            return await _create(client, control_plane, desired, purpose)
        return secret

    ca, etcd, proxy, sa = secrets = await asyncio.gather(*map(ensure, PURPOSES))
    if ca is None or etcd is None or proxy is None or sa is None:
        missing = [
            secret_name(desired.cluster, purpose)
            for purpose, secret in zip(PURPOSES, secrets, strict=True)
            if secret is None
        ]
        raise Blocked(
            Reason.CERTIFICATES_MISSING,
            f"missing in namespace {desired.namespace}: secret {', '.join(missing)}. New ones would"
            " invalidate everything that they signed",
            "restore them from a backup",
        )
    read = partial(read_ca, now=desired.now)
    return Authorities(
        ca=_read("ca", desired, ca, read),
        etcd=_read("etcd", desired, etcd, read),
        proxy=_read("proxy", desired, proxy, read),
        service_account=_read("sa", desired, sa, read_service_account_keys),
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
        authorities.ca.certificate_pem,
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
    server = Server(endpoint.url, ca=authorities.ca.certificate_pem)
    user = User(certificate=pair.certificate_pem, key=pair.private_key_pem)
    return new_kubeconfig(server, user, cluster=desired.cluster, username=_ADMINISTRATOR)


async def find_secret(
    client: Client, control_plane: CapelinControlPlane, name: str
) -> Secret | None:
    """A Secret with keys. If the provider has created it, it gets its lost owner again."""
    secret = await client.find(Secret, name, control_plane.namespace)
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
    cluster = desired.cluster
    if purpose == "sa":
        keys = new_service_account_keys(desired.algorithm)
        return service_account_secret(keys, cluster=cluster, owner=control_plane)
    pair = new_ca(_CA_NAMES[purpose], now=desired.now, algorithm=desired.algorithm)
    return certificate_secret(purpose, pair, cluster=cluster, owner=control_plane)


def _read(
    purpose: Purpose,
    desired: ControlPlane,
    secret: Secret,
    read: Callable[[bytes | None, bytes | None], KeysT],
) -> KeysT:
    """The keys in a Secret, read from its certificate and its private key."""
    message = secret_problem(secret, purpose, cluster=desired.cluster)
    if message is not None:
        raise Blocked(Reason.CERTIFICATES_NOT_USABLE, message)
    try:
        return read(secret.data.get(CERTIFICATE_KEY), secret.data.get(PRIVATE_KEY_KEY))
    except InvalidPemError as error:
        raise Blocked(Reason.CERTIFICATES_NOT_USABLE, f"Secret {secret.name}: {error}") from error


def _may_change(secret: Secret, control_plane: CapelinControlPlane) -> bool:
    controller = controller_of(secret.metadata.owner_references)
    is_created = CREATED_ANNOTATION in secret.metadata.annotations
    return is_controlled_by(secret, control_plane) or (controller is None and is_created)


def _is_issued_before(data: bytes, moment: datetime | None) -> bool:
    certificate = Config.from_secret(data).user.certificate
    return isinstance(certificate, bytes) and issued_before(certificate, moment)
