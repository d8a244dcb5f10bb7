"""The real kubeadm finds, trusts and reads a control plane of ours."""

import asyncio
import hashlib
import subprocess

import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client
from capelin.embedded.binaries import Binaries
from capelin.testing.waiting import until
from capelin_control_plane.workload import workload_objects
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from .rig import NEW, Rig, control_plane, settled

TOKEN_ID, TOKEN_SECRET = "shoal1", "abcdef0123456789"


def bootstrap_token() -> Secret:
    return Secret.of(
        f"bootstrap-token-{TOKEN_ID}",
        "kube-system",
        type="bootstrap.kubernetes.io/token",
        data={
            "token-id": TOKEN_ID.encode(),
            "token-secret": TOKEN_SECRET.encode(),
            "usage-bootstrap-authentication": b"true",
            "usage-bootstrap-signing": b"true",
            "auth-extra-groups": b"system:bootstrappers:kubeadm:default-node-token",
        },
    )


async def is_signed(client: Client) -> bool:
    info = await client.get(ConfigMap, "cluster-info", "kube-public")
    return f"jws-kubeconfig-{TOKEN_ID}" in info.data


def key_hash(certificate_pem: bytes) -> str:
    """What kubeadm pins an authority by."""
    key = x509.load_pem_x509_certificate(certificate_pem).public_key()
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(encoded).hexdigest()}"


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
        await client.apply(bootstrap_token())
        await until(lambda: is_signed(client))

    join = (
        *("join", "phase", "preflight", f"{endpoint.host}:{endpoint.port}"),
        f"--token={TOKEN_ID}.{TOKEN_SECRET}",
        "--node-name=shoal-1",
        "--cri-socket=unix:///run/none.sock",
        # What a machine has to have is not a matter of the control plane.
        "--ignore-preflight-errors=all",
    )
    code, said = await kubeadm(
        *join, f"--discovery-token-ca-cert-hash={key_hash(rig.keys.ca.certificate_pem)}", "-v=2"
    )
    assert code == 0, said
    assert "Cluster info signature and contents are valid" in said
    assert "kubeadm-config" in said

    code, said = await kubeadm(
        *join, f"--discovery-token-ca-cert-hash={key_hash(rig.keys.etcd.certificate_pem)}"
    )
    assert code != 0
    assert "none of the public keys" in said, said
