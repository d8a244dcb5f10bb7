"""Runs the program that a kubeconfig names for credentials, and reads what it hands out."""

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from capelin.client.access import ExecPlugin, Server
from capelin.client.errors import CredentialError

_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Credential:
    """What a program handed out, until `expires` if it said so."""

    token: str | None = field(repr=False)
    certificate: bytes | None = field(repr=False)
    key: bytes | None = field(repr=False)
    expires: datetime | None

    def is_over(self, at: datetime) -> bool:
        """Whether its time will have passed then."""
        return self.expires is not None and at >= self.expires


async def run(plugin: ExecPlugin, server: Server, ca: bytes | None) -> Credential:
    """Run the program and read its answer.

    Raises:
        CredentialError: it is not there, fails, takes too long or answers nonsense.
    """
    environment = {
        **os.environ,
        **plugin.environment,
        "KUBERNETES_EXEC_INFO": json.dumps(question(plugin, server, ca)),
    }
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.arguments,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None,
        )
    except OSError as error:
        hint = f" {plugin.install_hint.strip()}" if plugin.install_hint else ""
        raise CredentialError(
            f"the kubeconfig's credential program {plugin.command} cannot be run: "
            f"{error.strerror}.{hint}"
        ) from None
    try:
        async with asyncio.timeout(_PATIENCE):
            said, _ = await process.communicate()
    except TimeoutError:
        raise CredentialError(
            f"the kubeconfig's credential program {plugin.command} gave no answer "
            f"within {_PATIENCE:g} s"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        raise CredentialError(
            f"the kubeconfig's credential program {plugin.command} failed with exit code "
            f"{process.returncode}; what it wrote to stderr says why"
        )
    return answer(plugin, said)


def question(plugin: ExecPlugin, server: Server, ca: bytes | None) -> Mapping[str, Any]:
    """What the program is told: who asks, and for which server if it wants to know."""
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


def answer(plugin: ExecPlugin, said: bytes) -> Credential:
    """Read the program's answer.

    Raises:
        CredentialError: it is not an `ExecCredential` of the version asked for, or holds nothing.
    """
    at = f"the kubeconfig's credential program {plugin.command} answered"
    try:
        document: Any = json.loads(said)
    except ValueError:
        raise CredentialError(f"{at} with something that is not JSON") from None
    if not isinstance(document, dict):
        raise CredentialError(f"{at} with something that is not an ExecCredential")
    credential = cast("dict[str, Any]", document)
    if credential.get("apiVersion") != plugin.api_version:
        raise CredentialError(f"{at} in another version than {plugin.api_version}")
    status = cast("dict[str, Any]", credential.get("status") or {})
    certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
    if not status.get("token") and not (certificate and key):
        raise CredentialError(f"{at} without a token and without a client certificate and key")
    return Credential(
        status.get("token") or None,
        certificate.encode() if certificate and key else None,
        key.encode() if certificate and key else None,
        _moment(status.get("expirationTimestamp"), at),
    )


def _moment(said: str | None, at: str) -> datetime | None:
    if not said:
        return None
    try:
        return datetime.fromisoformat(said).astimezone(UTC)
    except ValueError:
        raise CredentialError(f"{at} with an expirationTimestamp that is no time") from None
