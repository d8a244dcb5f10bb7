"""The rules of conformance, held against Cluster API's own reference extension."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.embedded.addresses import free_port
from capelin.embedded.binaries import Binaries
from capelin.pki import issue, new_ca
from capelin.runtime.calling import Address
from capelin.runtime.conformance import examine
from capelin.runtime.requests import example_scene

pytestmark = [pytest.mark.timeout(300), pytest.mark.needs_programs("test-extension")]


@asynccontextmanager
async def reference(folder: Path, kubeconfig: Path) -> AsyncGenerator[Address]:
    """The extension in Go, with a certificate of its own."""
    now = datetime.now(UTC)
    ca = new_ca("reference", now=now)
    pair = issue(ca, common_name="reference", usages=["server"], addresses=["127.0.0.1"], now=now)
    (folder / "tls.crt").write_bytes(pair.certificate_pem)
    (folder / "tls.key").write_bytes(pair.private_key_pem)
    port = free_port("127.0.0.1", 9443)
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(await Binaries().path("test-extension")),
            f"--kubeconfig={kubeconfig}",
            f"--webhook-port={port}",
            f"--webhook-cert-dir={folder}",
            "--health-addr=127.0.0.1:0",
            "--diagnostics-address=127.0.0.1:0",
            stdout=log,
            stderr=log,
        )
    try:
        while True:
            assert process.returncode is None, (folder / "log").read_text()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                break
        yield Address("127.0.0.1", port, ca=ca.certificate_pem)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_cluster_api_s_reference_extension_holds_every_rule(
    tmp_path: Path, kubeconfig: Path, namespace: str
) -> None:
    variables = {"imageRepository": "kindest", "kubeadmControlPlaneMaxSurge": "1"}
    # It plans upgrades between the versions that it has images of, and to no others.
    scene = example_scene(
        "example",
        namespace,
        from_version="v1.33.7",
        to_version="v1.34.3",
        variables=variables,
    )
    settings = {"extensionConfigName": "reference", "defaultAllHandlersToBlocking": "false"}
    async with reference(tmp_path, kubeconfig) as address:
        report = await examine(address, scene=scene, settings=settings)
    assert {v.rule.name: v.problems for v in report.verdicts if v.problems} == {}
    assert len(report.handlers) >= 16
