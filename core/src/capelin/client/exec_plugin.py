"""Runs the exec plugin of a kubeconfig and reads the credentials that it prints."""

import asyncio
import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from capelin.client.errors import CredentialError
from capelin.client.server import ExecPlugin, Server
from capelin.programs import run_program

_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Credential:
    """Credentials from a plugin, valid until `expires` if the plugin gave a time."""

    token: str | None = field(repr=False)
    certificate: bytes | None = field(repr=False)
    key: bytes | None = field(repr=False)
    expires: datetime | None

    def is_expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= self.expires


async def run(plugin: ExecPlugin, server: Server, ca: bytes | None) -> Credential:
    """Run the plugin and read its output.

    Raises:
        CredentialError: It does not start, fails, takes too long or prints something else.
    """
    environment = {
        **os.environ,
        **plugin.environment,
        "KUBERNETES_EXEC_INFO": json.dumps(exec_info(plugin, server, ca)),
    }
    command = (plugin.command, *plugin.arguments)
    try:
        async with asyncio.timeout(_TIMEOUT):
            ended = await run_program(*command, env=environment, keeps_errors=False)
    except TimeoutError:
        raise CredentialError(
            f"the kubeconfig's credential program {plugin.command} gave no answer "
            f"within {_TIMEOUT:g} s"
        ) from None
    except OSError as error:
        hint = f" {plugin.install_hint.strip()}" if plugin.install_hint else ""
        raise CredentialError(
            f"the kubeconfig's credential program {plugin.command} cannot be run: "
            f"{error.strerror}.{hint}"
        ) from None
    if ended.code != 0:
        raise CredentialError(
            f"the kubeconfig's credential program {plugin.command} failed with exit code "
            f"{ended.code} (see its output on stderr)"
        )
    return read_output(plugin, ended.output)


def exec_info(plugin: ExecPlugin, server: Server, ca: bytes | None) -> Mapping[str, Any]:
    """The `ExecCredential` for the plugin, with the server if the plugin requests it."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = {
            "server": server.address,
            "insecure-skip-tls-verify": not server.verify,
            **({"certificate-authority-data": base64.b64encode(ca).decode()} if ca else {}),
            **({"tls-server-name": server.tls_server_name} if server.tls_server_name else {}),
            **({"proxy-url": server.proxy} if server.proxy else {}),
        }
    return {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}


def read_output(plugin: ExecPlugin, output: bytes) -> Credential:
    """Read the plugin's output.

    Raises:
        CredentialError: It is not an `ExecCredential` of this version, or has no credentials.
    """
    where = f"the kubeconfig's credential program {plugin.command} answered"
    try:
        document: Any = json.loads(output)
    except ValueError:
        raise CredentialError(f"{where} with something that is not JSON") from None
    if not isinstance(document, dict):
        raise CredentialError(f"{where} with something that is not an ExecCredential")
    credential = cast("dict[str, Any]", document)
    if credential.get("apiVersion") != plugin.api_version:
        raise CredentialError(f"{where} in another version than {plugin.api_version}")
    status = cast("dict[str, Any]", credential.get("status") or {})
    certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
    if not status.get("token") and not (certificate and key):
        raise CredentialError(f"{where} without a token and without a client certificate and key")
    return Credential(
        status.get("token") or None,
        certificate.encode() if certificate and key else None,
        key.encode() if certificate and key else None,
        _timestamp(status.get("expirationTimestamp"), where),
    )


def _timestamp(text: str | None, where: str) -> datetime | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise CredentialError(f"{where} with an expirationTimestamp that is not a time") from None
