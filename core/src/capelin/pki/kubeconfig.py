"""Kubeconfigs with embedded certificates: create them and decide when to renew them."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import yaml

from capelin.pki.certificates import KeyPair
from capelin.pki.renewal import reissue_reason
from capelin.yaml import read_untrusted_yaml, write_yaml


@dataclass(frozen=True, slots=True)
class KubeconfigAccess:
    """Server, CA and client certificate of a kubeconfig's current context."""

    server: str
    ca_pem: bytes
    client_certificate_pem: bytes | None = None


_DATA = {"client-certificate-data", "client-key-data", "token", "username", "password"}
"""Credentials that run no program and read no file."""


class KubeconfigError(ValueError):
    """The data is no kubeconfig with embedded certificates."""


def new_kubeconfig(
    server: str,
    ca_pem: bytes,
    user: str,
    client: KeyPair,
    *,
    cluster: str = "kubernetes",
    namespace: str | None = None,
) -> bytes:
    """A kubeconfig with one cluster, one user with a client certificate and one context."""
    context: dict[str, Any] = {"cluster": cluster, "user": user}
    if namespace is not None:
        context["namespace"] = namespace
    name = f"{user}@{cluster}"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [
            {
                "name": cluster,
                "cluster": {"server": server, "certificate-authority-data": _text(ca_pem)},
            }
        ],
        "contexts": [{"name": name, "context": context}],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _text(client.certificate_pem),
                    "client-key-data": _text(client.private_key_pem),
                },
            }
        ],
    }
    return write_yaml(content).encode()


def read_kubeconfig(data: bytes) -> KubeconfigAccess:
    """Read the current context of a kubeconfig.

    Raises:
        KubeconfigError: it has no server or no embedded CA.
    """
    try:
        content = read_untrusted_yaml(data)
        context = _named(content, "context", content["current-context"])
        cluster = _named(content, "cluster", context["cluster"])
        user = _named(content, "user", context["user"])
        if user.keys() - _DATA:
            raise ValueError("programs or files")  # noqa: TRY301 - handled like the rest
        certificate = user.get("client-certificate-data")
        return KubeconfigAccess(
            server=str(cluster["server"]),
            ca_pem=_bytes(cluster["certificate-authority-data"]),
            client_certificate_pem=None if certificate is None else _bytes(certificate),
        )
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError):
        # The parser's message may quote the content, keys included.
        raise KubeconfigError(
            "this is no kubeconfig whose current context has a server and its CA; "
            "delete it, so that it is created again"
        ) from None


def kubeconfig_reason(
    data: bytes | None,
    server: str,
    ca_pem: bytes,
    *,
    signer_pem: bytes,
    common_name: str,
    organizations: Iterable[str] = (),
    now: datetime,
    share: float = 0.5,
) -> str | None:
    """Why a kubeconfig must be renewed, as a clause after "because"; `None` if it is good.

    `ca_pem` is the CA to trust, `signer_pem` the CA that signs its client certificate.
    """
    if data is None:
        return "there is none yet"
    try:
        access = read_kubeconfig(data)
    except KubeconfigError:
        return "the present one cannot be read"
    if access.server != server:
        return "its server is another"
    if access.ca_pem != ca_pem:
        return "it trusts other CAs"
    if access.client_certificate_pem is None:
        return "it has no client certificate"
    reason = reissue_reason(
        access.client_certificate_pem,
        signer_pem,
        common_name=common_name,
        organizations=organizations,
        usages=("client",),
        now=now,
        share=share,
    )
    return reason and f"with its client certificate, {reason}"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _named(content: Any, kind: str, name: str) -> dict[str, Any]:
    for entry in content[f"{kind}s"]:
        if entry["name"] == name:
            return cast("dict[str, Any]", entry[kind])
    raise KeyError(name)
