"""The real kubeadm finds, trusts and reads a control plane of Capelin."""

import asyncio
import subprocess

import pytest
from capelin.testing.waiting import until
from capelin_control_plane.workload import workload_objects
from capelin_embedded.binaries import Binaries

from tests.joining import BootstrapToken, ca_cert_hash

from .rig import NEW, Rig, control_plane, settled

TOKEN = BootstrapToken()


async def kubeadm(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        await Binaries().path("kubeadm", NEW),
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.needs_programs(f"kubeadm@{NEW}")
async def test_the_real_kubeadm_passes_discovery_and_preflight(rig: Rig) -> None:
    desired = control_plane(NEW)
    await rig.until(desired, settled)
    endpoint = rig.endpoint
    assert endpoint is not None
    async with rig.client() as client:
        ca = rig.keys.ca.certificate_pem
        for manifest in workload_objects(desired, endpoint, ca):
            await client.apply(manifest)
        await client.apply(TOKEN.manifest)
        await until(lambda: TOKEN.is_signed(client))

    join = (
        *("join", "phase", "preflight", f"{endpoint.host}:{endpoint.port}"),
        f"--token={TOKEN}",
        "--node-name=shoal-1",
        "--cri-socket=unix:///run/none.sock",
        # The control plane does not check the machine.
        "--ignore-preflight-errors=all",
    )
    code, output = await kubeadm(
        *join, f"--discovery-token-ca-cert-hash={ca_cert_hash(rig.keys.ca.certificate_pem)}", "-v=2"
    )
    assert code == 0, output
    assert "Cluster info signature and contents are valid" in output
    assert "kubeadm-config" in output

    code, output = await kubeadm(
        *join, f"--discovery-token-ca-cert-hash={ca_cert_hash(rig.keys.etcd.certificate_pem)}"
    )
    assert code != 0
    assert "none of the public keys" in output, output
