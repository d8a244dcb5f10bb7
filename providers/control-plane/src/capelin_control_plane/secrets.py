"""The secrets of a control plane in the management cluster: found or made, never made anew."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from capelin.api.views.core import Secret
from capelin.client import AlreadyExists, Client
from capelin.contract import secrets
from capelin.contract.labels import SECRET_TYPE
from capelin.contract.owners import controller_of, ensure, reference_to
from capelin.pki import (
    KeyPair,
    RefusedError,
    ServiceAccountKeys,
    client_certificate_of,
    issue,
    kubeconfig,
    kubeconfig_reason,
    new_ca,
    new_service_account_keys,
    read_ca,
    read_service_account_keys,
)

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backends import Problem, Site
from capelin_control_plane.certificates import Authorities, Authority, made_before
from capelin_control_plane.desired import ControlPlane

Purpose = Literal["ca", "etcd", "proxy", "sa"]
_PURPOSES: tuple[Purpose, ...] = ("ca", "etcd", "proxy", "sa")

_ADMINISTRATOR = "kubernetes-admin"
_ADMINISTRATORS = "system:masters"
_NAMES: dict[Authority, str] = {"ca": "kubernetes", "etcd": "etcd-ca", "proxy": "front-proxy-ca"}


async def authorities(
    client: Client,
    control_plane: CapelinControlPlane,
    wanted: ControlPlane,
    now: datetime,
    *,
    may_make: bool,
) -> Authorities | Problem:
    """The authorities and keys that everything is signed with, made where there are none.

    They may be made as long as nothing was signed with others.
    """

    async def have(purpose: Purpose) -> Secret | None:
        found = await _find(client, control_plane, wanted, purpose)
        if found is None and may_make:
            return await _made(client, control_plane, wanted, purpose, now)
        return found

    ca, etcd, proxy, sa = found = await asyncio.gather(*map(have, _PURPOSES))
    if ca is None or etcd is None or proxy is None or sa is None:
        there = zip(_PURPOSES, found, strict=True)
        return _missing(wanted, [purpose for purpose, secret in there if secret is None])
    try:
        return Authorities(
            ca=_read_ca("ca", wanted, ca, now),
            etcd=_read_ca("etcd", wanted, etcd, now),
            proxy=_read_ca("proxy", wanted, proxy, now),
            service_account=_read_keys(wanted, sa),
        )
    except _UnusableError as error:
        return Problem("CertificatesNotUsable", str(error))


async def ca_certificate(client: Client, cluster: str, namespace: str) -> bytes | None:
    """The certificate of a cluster's authority, if there is one."""
    secret = await client.find(Secret, secrets.secret_name(cluster, "ca"), namespace)
    return None if secret is None else secret.data.get(secrets.CERTIFICATE)


async def ensure_kubeconfig(
    client: Client,
    control_plane: CapelinControlPlane,
    wanted: ControlPlane,
    *,
    site: Site,
    keys: Authorities,
    now: datetime,
) -> None:
    """Keep the kubeconfig through which core and administrators reach the workload cluster."""
    name = secrets.secret_name(wanted.cluster, "kubeconfig")
    present = await client.find(Secret, name, wanted.namespace)
    if present is not None and not _may_change(present, control_plane):
        return
    data = present.data.get(secrets.KUBECONFIG) if present else None
    reason = kubeconfig_reason(
        data,
        site.server,
        keys.ca.certificate_pem,
        signer_pem=keys.ca.certificate_pem,
        common_name=_ADMINISTRATOR,
        organizations=(_ADMINISTRATORS,),
        now=now,
    )
    if data is None or reason is not None or _made_before(data, wanted):
        data = _new_kubeconfig(wanted, site.server, keys, now)
    secret = secrets.kubeconfig_secret(data, cluster=wanted.cluster, owner=control_plane)
    if present is None or _differs(present, secret):
        await client.apply(secret)


def _differs(present: Secret, wanted: Secret) -> bool:
    return (
        present.data != wanted.data
        or present.type != wanted.type
        or not wanted.metadata.labels.items() <= present.metadata.labels.items()
        or wanted.metadata.owner_references != present.metadata.owner_references
    )


def _new_kubeconfig(wanted: ControlPlane, server: str, keys: Authorities, now: datetime) -> bytes:
    pair = issue(
        keys.ca,
        common_name=_ADMINISTRATOR,
        organizations=(_ADMINISTRATORS,),
        usages=("client",),
        now=now,
        validity=wanted.validity,
        algorithm=wanted.algorithm,
    )
    return kubeconfig(server, keys.ca.certificate_pem, _ADMINISTRATOR, pair, cluster=wanted.cluster)


class _UnusableError(ValueError):
    """A secret that is there cannot be used."""


async def _find(
    client: Client, control_plane: CapelinControlPlane, wanted: ControlPlane, purpose: Purpose
) -> Secret | None:
    name = secrets.secret_name(wanted.cluster, purpose)
    found = await client.find(Secret, name, wanted.namespace)
    if found is None or found.type != SECRET_TYPE:
        return found
    if controller_of(found.metadata.owner_references) is not None:
        return found
    # Made by us or for us, and somebody took its owner away: it would be lost in a move.
    owners = ensure(found.metadata.owner_references, reference_to(control_plane, controller=True))
    patch = {
        "metadata": {
            "resourceVersion": found.metadata.resource_version,
            "ownerReferences": [owner.dump() for owner in owners],
        }
    }
    return await client.patch(Secret, name, wanted.namespace, patch)


async def _made(
    client: Client,
    control_plane: CapelinControlPlane,
    wanted: ControlPlane,
    purpose: Purpose,
    now: datetime,
) -> Secret:
    made = await asyncio.to_thread(_new, control_plane, wanted, purpose, now)
    try:
        return await client.create(made)
    except AlreadyExists:
        return await client.get(Secret, made.name, wanted.namespace)


def _missing(wanted: ControlPlane, purposes: Sequence[Purpose]) -> Problem:
    names = ", ".join(secrets.secret_name(wanted.cluster, purpose) for purpose in purposes)
    return Problem(
        "CertificatesMissing",
        f"gone from namespace {wanted.namespace}: secret {names}. What it signed would not be"
        " trusted with a new one; bring it back from a backup",
    )


def _new(
    control_plane: CapelinControlPlane, wanted: ControlPlane, purpose: Purpose, now: datetime
) -> Secret:
    if purpose == "sa":
        keys = new_service_account_keys(wanted.algorithm)
        return secrets.service_account_secret(keys, cluster=wanted.cluster, owner=control_plane)
    pair = new_ca(_NAMES[purpose], now=now, algorithm=wanted.algorithm)
    return secrets.certificate_secret(purpose, pair, cluster=wanted.cluster, owner=control_plane)


def _read_ca(purpose: Authority, wanted: ControlPlane, secret: Secret, now: datetime) -> KeyPair:
    _check(purpose, wanted, secret)
    try:
        return read_ca(
            secret.data.get(secrets.CERTIFICATE), secret.data.get(secrets.PRIVATE_KEY), now
        )
    except RefusedError as error:
        raise _UnusableError(f"Secret {secret.name}: {error}") from error


def _read_keys(wanted: ControlPlane, secret: Secret) -> ServiceAccountKeys:
    _check("sa", wanted, secret)
    try:
        return read_service_account_keys(
            secret.data.get(secrets.CERTIFICATE), secret.data.get(secrets.PRIVATE_KEY)
        )
    except RefusedError as error:
        raise _UnusableError(f"Secret {secret.name}: {error}") from error


def _check(purpose: Purpose, wanted: ControlPlane, secret: Secret) -> None:
    problem = secrets.problem(secret, purpose, cluster=wanted.cluster)
    if problem is not None:
        raise _UnusableError(problem)


def _may_change(secret: Secret, control_plane: CapelinControlPlane) -> bool:
    controller = controller_of(secret.metadata.owner_references)
    return secrets.is_ours(secret, control_plane) or (
        controller is None and secret.type == SECRET_TYPE
    )


def _made_before(data: bytes, wanted: ControlPlane) -> bool:
    certificate = client_certificate_of(data)
    return certificate is not None and made_before(certificate, wanted.renew_made_before)
