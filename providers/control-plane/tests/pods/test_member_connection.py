"""The connection to a member of etcd in a pod, with the certificates of the control plane."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from capelin.client import Config
from capelin.pki import KeyPair, issue
from capelin_control_plane.backends.pods import etcd_changes
from capelin_control_plane.etcd.api import MembershipError

from .test_backend import Rig, rig

__all__ = ["rig"]


async def status(_: web.Request) -> web.Response:
    return web.json_response({"raftIndex": "9", "leader": "1", "header": {"revision": "7"}})


def member_tls(ca: KeyPair, folder: Path) -> ssl.SSLContext:
    """A member's side of TLS. It requires a certificate of a client of etcd."""
    addresses = ["127.0.0.1"]
    pair = issue(
        ca, common_name="one", usages=["server"], addresses=addresses, now=datetime.now(UTC)
    )
    (folder / "pem").write_bytes(pair.certificate_pem + pair.private_key_pem)
    context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cadata=ca.certificate_pem.decode()
    )
    context.load_cert_chain(folder / "pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_a_backup_reads_a_ready_member_through_its_pod(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MembershipError, match="no etcd member is ready"):
        async with rig.backend.etcd(rig.key):
            pass
    await rig.apply(rig.desired)
    with pytest.raises(MembershipError, match="no etcd member is ready"):
        async with rig.backend.etcd(rig.key):
            pass
    await rig.run_members()
    await rig.apply(rig.desired)
    app, pods = web.Application(), list[tuple[str, str, int]]()
    app.router.add_post("/v3/maintenance/status", status)
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=member_tls(rig.keys.etcd, tmp_path))
    async with server:

        @asynccontextmanager
        async def forwarded(
            _: Config, namespace: str, pod: str, port: int
        ) -> AsyncGenerator[int | None]:
            pods.append((namespace, pod, port))
            yield server.make_url("/").port

        monkeypatch.setattr(etcd_changes, "forwarded_port", forwarded)
        async with rig.backend.etcd(rig.key) as etcd:
            assert (await etcd.status()).revision == 7
    assert pods == [(rig.namespace, "one-etcd-2", 2379)]
