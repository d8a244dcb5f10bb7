"""A kubeconfig for one person: a short-lived client certificate that the workload cluster signs.

The private key stays on this machine, and the cluster's audit log shows the request and its
approval. Any control plane provider works, because Kubernetes itself signs.
"""

import asyncio
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from capelin.api import Resource, Unstructured, format_duration
from capelin.client import Client, Config, User, new_kubeconfig
from capelin.errors import InvalidInputError, NotReadyError
from capelin.pki import new_request, validity_of
from capelin_embedded.processes import write_private

from capelin_cli.environments.connection import find_environment
from capelin_cli.environments.kubeconfigs import workload_kubeconfig

REQUESTS: Final = Resource(
    "certificates.k8s.io",
    "v1",
    "CertificateSigningRequest",
    "certificatesigningrequests",
    namespaced=False,
)
SIGNER: Final = "kubernetes.io/kube-apiserver-client"
SHORTEST: Final = timedelta(minutes=10)
"""Kubernetes issues no shorter certificate."""
_ADMINISTRATORS: Final = "system:masters"
_SIGNED_WITHIN: Final = 30.0
_APPROVED: Final = {
    "type": "Approved",
    "status": "True",
    "reason": "RequestedByAdministrator",
    "message": "capelin kubeconfig --user",
}


@dataclass(frozen=True)
class Access:
    """The user that a certificate names, and how long it is valid."""

    user: str
    groups: tuple[str, ...]
    validity: timedelta

    def request(self) -> tuple[Unstructured, bytes]:
        """A new CertificateSigningRequest, and the private key."""
        if self.validity < SHORTEST:
            raise InvalidInputError(
                f"{format_duration(self.validity)} is too short.",
                reason="Kubernetes issues certificates for 10 minutes or longer.",
                hint="Type --for 10m, or a longer duration.",
            )
        if _ADMINISTRATORS in self.groups:
            raise InvalidInputError(
                f"Kubernetes signs no certificate for the group {_ADMINISTRATORS}.",
                reason="No RBAC rule limits this group.",
                hint="Use another group, and bind the ClusterRole cluster-admin to it.",
            )
        try:
            pem, key = new_request(self.user, self.groups)
        except ValueError as error:
            raise InvalidInputError(
                f'A certificate cannot name the user "{self.user}".',
                reason=f"{error}.",
                hint="Use a name of 1 to 64 characters, and groups of the same length.",
            ) from None
        spec = {
            "request": b64encode(pem).decode(),
            "signerName": SIGNER,
            "usages": ["client auth"],
            "expirationSeconds": int(self.validity.total_seconds()),
        }
        return {
            "apiVersion": REQUESTS.api_version,
            "kind": REQUESTS.kind,
            "metadata": {"name": f"capelin-{uuid4().hex[:12]}"},
            "spec": spec,
        }, key


async def user_kubeconfig_of(
    environment: str, cluster: str, namespace: str, access: Access
) -> tuple[Path, datetime]:
    """A file with the kubeconfig of a user of a workload cluster, and the end of its validity."""
    request, key = access.request()
    administrator = await workload_kubeconfig(find_environment(environment), cluster, namespace)
    config = Config.from_kubeconfig(administrator)
    async with Client(config, manager="capelin-cli") as client:
        certificate = await _sign(client, request)
    user = User(certificate=certificate, key=key)
    path = administrator.with_name(f"{administrator.name}.{quote(access.user, safe='@')}")
    content = new_kubeconfig(config.server, user, cluster=cluster, username=access.user)
    write_private(path, content)
    return path, validity_of(certificate).not_after


async def _sign(client: Client, request: Unstructured) -> bytes:
    """Create and approve a request, and wait for the certificate. The request does not stay."""
    name, approval = request["metadata"]["name"], {"status": {"conditions": [_APPROVED]}}
    await client.create(request, resource=REQUESTS)
    try:
        await client.patch(REQUESTS, name, None, approval, subresource="approval")
        async with asyncio.timeout(_SIGNED_WITHIN):
            while True:
                status: dict[str, Any] = (await client.get(REQUESTS, name))["status"]
                if signed := status.get("certificate"):
                    return b64decode(signed)
                for condition in status["conditions"]:
                    if condition["type"] == "Failed":
                        raise InvalidInputError(
                            "The cluster refuses to sign the certificate.",
                            reason=condition.get("message", "It does not say why."),
                            hint="Change --user, --group or --for.",
                        )
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise NotReadyError(
            f"The cluster did not sign the certificate within {_SIGNED_WITHIN:.0f} s.",
            reason="Its kube-controller-manager signs.",
            hint="Look at it with capelin status, then repeat the command.",
        ) from None
    finally:
        await client.delete(REQUESTS, name)
