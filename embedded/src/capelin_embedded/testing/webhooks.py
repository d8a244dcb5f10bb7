"""Webhooks of managers that run in a test.

ca = write_certificate(tmp_path)
webhooks = {"webhook_address": LOOPBACK, "cert_dir": tmp_path}
async with running(Reams(), config=config, **webhooks) as manager:
    for manifest in await local_crds(provider(), manager, ca):
        await client.apply(manifest)
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from capelin.api import Unstructured
from capelin.controller import Address, Manager
from capelin.pki import issue, new_ca
from capelin.provider import Provider, is_validation
from capelin.testing.waiting import until

from capelin_embedded.management import WebhookEndpoint, localize

LOOPBACK: Final = Address("127.0.0.1", 0)
"""An address of this machine, with any free port."""


def write_certificate(folder: Path) -> bytes:
    """Write the certificate and key of a server on `LOOPBACK`. Returns the CA."""
    now = datetime.now(UTC)
    ca = new_ca("capelin-testing", now=now)
    pair = issue(ca, common_name="webhooks", usages=["server"], addresses=[LOOPBACK.host], now=now)
    folder.joinpath("tls.crt").write_bytes(pair.certificate_pem)
    folder.joinpath("tls.key").write_bytes(pair.private_key_pem)
    return ca.certificate_pem


async def local_crds(provider: Provider, manager: Manager, ca_pem: bytes) -> list[Unstructured]:
    """The CRDs of a provider, for an API server on this machine that calls this manager."""
    return localize(
        provider.crds, provider=provider.label, listener=await _endpoint(manager, ca_pem)
    )


async def local_validation(
    provider: Provider, manager: Manager, ca_pem: bytes
) -> list[Unstructured]:
    """The validating webhooks of a provider, for an API server that calls this manager."""
    configurations = filter(is_validation, provider.objects)
    return localize(
        configurations, provider=provider.label, listener=await _endpoint(manager, ca_pem)
    )


async def _endpoint(manager: Manager, ca_pem: bytes) -> WebhookEndpoint:
    def bound() -> Address | None:
        return manager.webhooks.bound if manager.webhooks else None

    await until(lambda: bound() is not None)
    host, port = bound() or LOOPBACK
    return WebhookEndpoint(host, port, ca_pem)
