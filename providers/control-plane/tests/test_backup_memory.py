"""The memory of the provider that sends a snapshot of a real etcd to a real S3 server, or reads it.

`CAPELIN_SNAPSHOT_MIB=1024` measures a larger snapshot, and `pytest -s` prints the result.
"""

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from capelin.testing.waiting import until
from capelin_embedded.addresses import free_port
from capelin_embedded.binaries import Binaries

from tests.s3.versitygw import BUCKET, KEY_ID, SECRET, VERSITYGW, s3_server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(580),
    pytest.mark.needs_programs("etcd", VERSITYGW),
]
MEBIBYTES = int(os.environ.get("CAPELIN_SNAPSHOT_MIB", "128"))
LIMIT_MEBIBYTES = 96
PROGRAM = """
import asyncio, json, ssl, sys, time
from datetime import UTC, datetime
from pathlib import Path
import aiohttp
from capelin_control_plane.backup.files import (BackupWriter, read_snapshot)
from capelin_control_plane.backup.manifests import Manifest
from capelin_control_plane.etcd.api import EtcdApi
from capelin_control_plane.backup.s3 import Bucket, S3Store
from capelin_control_plane.backup.s3 import S3Credentials

def memory(field):
    status = Path("/proc/self/status").read_text()
    return int(status.partition(field + ":")[2].split()[0]) / 1024

async def main(etcd_url, endpoint, bucket, key_id):
    secret, ca = json.loads(sys.stdin.read())
    bucket = Bucket(endpoint=endpoint, region="us-east-1", name=bucket, folder="a/")
    tls = ssl.create_default_context(cadata=ca)
    async with (
        aiohttp.ClientSession() as etcd,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
    ):
        store = S3Store(session, bucket, S3Credentials(key_id, secret))
        writer = BackupWriter(store, "20260131T030000Z", b"k" * 32, "a")
        await writer.authorities(b"")
        Path("/proc/self/clear_refs").write_text("5")
        rest, begun = memory("VmRSS"), time.monotonic()
        size = await writer.snapshot(EtcdApi(etcd, etcd_url).snapshot())
        sent = [size, memory("VmHWM") - rest, time.monotonic() - begun]
        manifest = Manifest(
            namespace="", cluster="", control_plane="", authority="a", kubernetes_version="",
            etcd_version="", revision=1, taken_at=datetime(2026, 1, 31, 3, tzinfo=UTC), seconds=1,
            snapshot_bytes=size,
        )
        Path("/proc/self/clear_refs").write_text("5")
        rest, begun, read = memory("VmRSS"), time.monotonic(), 0
        async for piece in read_snapshot(store, manifest, b"k" * 32):
            read += len(piece)
        print(json.dumps([sent, [read, memory("VmHWM") - rest, time.monotonic() - begun]]))

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def full_etcd(folder: Path) -> AsyncGenerator[str]:
    """The URL of an etcd with as many MiB of random data."""
    clients, peers = (f"http://127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2))
    process = await asyncio.create_subprocess_exec(
        await Binaries().path("etcd"),
        f"--data-dir={folder}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--quota-backend-bytes=8589934592",
        "--unsafe-no-fsync",
        "--log-level=fatal",
    )
    try:
        async with aiohttp.ClientSession() as session:

            async def put(number: int) -> bool:
                body = {
                    "key": base64.b64encode(b"%d" % number).decode(),
                    "value": base64.b64encode(os.urandom(2**19)).decode(),
                }
                try:
                    async with session.post(f"{clients}/v3/kv/put", json=body) as response:
                        return response.status == 200
                except aiohttp.ClientError:
                    return False

            await until(lambda: put(0))
            for number in range(1, 2 * MEBIBYTES + 1):
                assert await put(number)
        yield clients
    finally:
        process.terminate()
        await process.wait()


async def test_the_memory_does_not_depend_on_the_size_of_the_snapshot(tmp_path: Path) -> None:
    async with full_etcd(tmp_path / "etcd") as etcd, s3_server(tmp_path / "s3") as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, etcd, server.endpoint, BUCKET, KEY_ID),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate(json.dumps([SECRET, server.ca]).encode())
        assert process.returncode == 0
        sent, read = json.loads(output)
    for verb, (size, memory, seconds) in (("sent", sent), ("read", read)):
        print(  # noqa: T201
            f"{verb} {size / 2**20:.0f} MiB in {seconds:.1f} s, {memory:.1f} MiB above rest"
        )
        assert size > MEBIBYTES << 20
        assert memory < LIMIT_MEBIBYTES
    assert read[0] == sent[0]
