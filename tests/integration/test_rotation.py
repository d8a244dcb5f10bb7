"""CAs and the service account key rotate while clients of both generations write and read."""

import asyncio
import base64
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.api import Resource
from capelin.api.core import ConfigMap, Node, Secret, ServiceAccount
from capelin.client import Client, Config, Server, Unauthorized, User
from capelin.contract import find_condition
from capelin.pki import (
    KeyPair,
    is_issued_by,
    issue,
    new_request,
    split_pem,
)
from capelin.testing.waiting import until
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION
from capelin_control_plane.keys.rotation_clients import NODE_ANNOTATION, SIMULATED_ANNOTATION
from capelin_control_plane.operations.rotation import DROP_ANNOTATION, ROTATE_ANNOTATION, ROTATING
from capelin_embedded.binaries import TESTED_KUBERNETES

from tests.faults.http2 import Http2Load
from tests.load import Load
from tests.support.authority_secrets import AUTHORITIES

from .test_control_plane_kills import ETCD, Shoal, shoal

__all__ = ["shoal"]  # a fixture
VERSION = TESTED_KUBERNETES[-1]
KILLS = int(os.environ.get("CAPELIN_TEST_ROTATION_KILLS", "20"))
"""How often the provider is killed on the way to each part."""
SECONDS = 400
_REQUESTS = Resource(
    "certificates.k8s.io",
    "v1",
    "CertificateSigningRequest",
    "certificatesigningrequests",
    namespaced=False,
)
pytestmark = [
    pytest.mark.timeout(3 * SECONDS + 40 * KILLS),
    pytest.mark.needs_programs(
        "etcdutl",
        *(f"kube-{name}@{VERSION}" for name in ("apiserver", "controller-manager", "scheduler")),
    ),
]


async def condition(shoal: Shoal) -> tuple[str, str] | None:
    """The reason and the message of the rotation."""
    status = (await shoal.mine.get()).status
    found = find_condition(status.conditions, ROTATING) if status else None
    return (found.reason, found.message) if found else None


async def through_kills(shoal: Shoal, done: Callable[[], Awaitable[bool]], kills: int) -> None:
    """Kill the provider again and again, then let it finish. No key is lost on the way."""
    for _ in range(kills):
        changes = shoal.random.randrange(1, 40)
        await shoal.mortal.live(changes, shoal.random.uniform(0.3, 3.0))
        await shoal.authorities.check(successors=1)
    async with shoal.mortal.undisturbed():
        await until(done, within=SECONDS)
    await shoal.authorities.check(successors=1)


@asynccontextmanager
async def clients(kubeconfig: bytes, prefix: str) -> AsyncGenerator[Sequence[Load]]:
    """Clients that write objects and read them, with the same kubeconfig all the time."""
    config = Config.from_kubeconfig(kubeconfig)
    loads = [
        Load(config, pause=0.2, prefix=f"{prefix}-1"),
        Http2Load(config, pause=0.2, keeps=True, prefix=f"{prefix}-2"),
    ]
    running = [asyncio.create_task(load.run()) for load in loads]
    try:
        yield loads
        # A fast machine rotates while the clients send a few requests only.
        for load in loads:
            await load.reaches(50)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    for load in loads:
        assert load.failed == [], load
        assert len(load.written) > 20


def node(name: str, *, simulated: bool) -> Node:
    found = Node.of(name)
    if simulated:
        found.metadata.annotations = {SIMULATED_ANNOTATION: "no kubelet"}
    return found


async def renew_kubelet_certificate(server: Server, credentials: KeyPair) -> None:
    """Request a certificate as the kubelet of the Node `real` does, with its present one."""
    user = User(credentials.certificate_pem, credentials.private_key_pem)
    request, _ = new_request("system:node:real", ["system:nodes"])
    manifest: dict[str, Any] = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "csr-real"},
        "spec": {
            "request": base64.b64encode(request).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["client auth", "digital signature"],
        },
    }
    async with Client(Config(server, user), manager="kubelet") as kubelet:
        await kubelet.request("POST", _REQUESTS.path(), body=manifest)


async def works(config: Config, token: str) -> bool:
    """Whether an API server accepts a token."""
    trusting = Config(config.server, User(token=token))
    try:
        async with Client(trusting, manager="pod") as pod:
            await pod.request("GET", "/api")
    except Unauthorized:
        return False
    return True


@dataclass(frozen=True)
class Before:
    """Credentials of the first generation."""

    secrets: Mapping[str, Secret]
    kubeconfig: bytes
    token: str
    kubelet: KeyPair

    @property
    def config(self) -> Config:
        return Config.from_kubeconfig(self.kubeconfig)


async def prepare(shoal: Shoal) -> Before:
    """Create Nodes, and clients with credentials of the first CA."""
    found = await shoal.authorities.read()
    kubelet = issue(
        KeyPair(found["ca"].data["tls.crt"], found["ca"].data["tls.key"]),
        common_name="system:node:real",
        organizations=["system:nodes"],
        usages=("client",),
        now=datetime.now(UTC),
    )
    async with shoal.mine.workload() as workload:
        await workload.create(node("simulated", simulated=True))
        await workload.create(node("real", simulated=False))
        await workload.create(ServiceAccount.of("pod", "default"))
        token = await workload.create_token("pod", "default")
    return Before(found, await shoal.mine.kubeconfig(), token.value, kubelet)


async def begin(shoal: Shoal, before: Before, kills: int) -> None:
    """Until only clients need the old CAs."""

    async def waits() -> bool:
        found = await condition(shoal)
        return found is not None and found[0] == "WaitingForClients" and await shoal.settled()

    await shoal.mine.annotate(ROTATE_ANNOTATION, datetime.now(UTC).isoformat())
    await through_kills(shoal, waits, kills)
    for purpose, secret in (await shoal.authorities.read()).items():
        old = before.secrets[purpose].data
        new, former = split_pem(secret.data["tls.crt"])
        assert former == old["tls.crt"], purpose
        assert new != former
        assert secret.data["tls.key"] != old["tls.key"]
    assert shoal.authorities.successors == dict.fromkeys(AUTHORITIES, 1)
    found = await condition(shoal)
    assert found is not None
    assert "1 Node whose kubelet has a certificate of the old CA (real)" in found[1]
    assert "tokens of pods, until " in found[1]
    assert "no copy of a kubeconfig" in found[1]


async def renew_clients(shoal: Shoal) -> None:
    """The provider finds the new certificate of the kubelet, and a person confirms the rest."""

    async def is_renewed() -> bool:
        async with shoal.mine.workload() as workload:
            annotations = (await workload.get(Node, "real")).metadata.annotations
        return NODE_ANNOTATION in annotations

    await shoal.mine.annotate(DROP_ANNOTATION, datetime.now(UTC).isoformat())
    async with shoal.mortal.undisturbed():
        await until(is_renewed, within=SECONDS)
        message = "3 of 3: the old CAs and keys stay trusted. Waiting for tokens of pods, until"
        found = await until(lambda: condition(shoal), lambda found: message in str(found))
    assert found is not None
    assert "Node" not in found[1]
    assert "kubeconfig" not in found[1]


async def end(shoal: Shoal, before: Before, kills: int) -> None:
    """Until the old CAs are dropped. The test does not wait for tokens."""
    during = await shoal.authorities.read()

    async def is_over() -> bool:
        return await condition(shoal) is None and await shoal.settled()

    await shoal.mine.annotate(DROP_ANNOTATION, f"force@{datetime.now(UTC).isoformat()}")
    await through_kills(shoal, is_over, kills)
    after = await shoal.authorities.read()
    for purpose in AUTHORITIES:
        assert (
            split_pem(after[purpose].data["tls.crt"])
            == split_pem(during[purpose].data["tls.crt"])[:1]
        )
    assert shoal.authorities.successors == dict.fromkeys(AUTHORITIES, 1)
    with pytest.raises(Unauthorized):
        async with Client(before.config, manager="old") as client:
            await client.request("GET", "/api")
    ca = after["ca"].data["tls.crt"]
    assert Config.from_kubeconfig(await shoal.mine.kubeconfig()).server.ca == ca
    async with shoal.mine.workload() as workload:
        info = await workload.get(ConfigMap, "cluster-info", "kube-public")
    assert base64.b64encode(ca).decode() in info.data["kubeconfig"]


async def rotate(shoal: Shoal, kills: int) -> None:
    mine = shoal.mine
    await mine.create(VERSION, replicas=2, etcd={"replicas": ETCD})
    await through_kills(shoal, shoal.settled, 0)
    before = await prepare(shoal)
    assert await works(before.config, before.token)
    # Their credentials are those of the first CA until the wait.
    async with clients(before.kubeconfig, "old") as old_clients:
        began = time.monotonic()
        await begin(shoal, before, kills)
        waiting = time.monotonic()
        assert await works(before.config, before.token)
        await renew_kubelet_certificate(before.config.server, before.kubelet)
    new = Config.from_kubeconfig(await mine.kubeconfig())
    assert isinstance(new.user.certificate, bytes)
    assert isinstance(new.server.ca, bytes)
    assert is_issued_by(new.user.certificate, split_pem(new.server.ca)[0])
    async with clients(await mine.kubeconfig(), "new") as new_clients:
        await renew_clients(shoal)
        async with mine.workload() as workload:
            token = await workload.create_token("pod", "default")
        dropping = time.monotonic()
        await end(shoal, before, kills)
        over = time.monotonic()
        assert not await works(new, before.token)
        assert await works(new, token.value)
    sent = sum(load.sent for load in (*old_clients, *new_clients))
    print(  # noqa: T201 - figures
        f"begin {waiting - began:.0f} s, end {over - dropping:.0f} s, {kills} kills in each,"
        f" {sent} requests, {ETCD} members"
    )


@pytest.mark.representative
async def test_authorities_rotate_without_a_failed_request(shoal: Shoal) -> None:
    await rotate(shoal, kills=0)


async def test_authorities_rotate_through_kills_of_the_provider(shoal: Shoal) -> None:
    await rotate(shoal, KILLS)


async def test_a_backup_from_before_a_rotation_is_restored_after_it(shoal: Shoal) -> None:
    mine = shoal.mine
    await mine.client.create(Secret.of("backup-key", mine.namespace, data={"key": b"k" * 32}))
    backup = {"destination": {"folder": "etcd"}, "encryptionKey": {"name": "backup-key"}}
    await mine.create(VERSION, etcd={"replicas": ETCD, "backup": backup})
    async with shoal.mortal.undisturbed():
        await until(shoal.settled, within=SECONDS)
        async with mine.workload() as workload:
            await workload.create(ConfigMap.of("before", "default"))
        requested = await mine.request_backup()
        name = await until(lambda: mine.backup_since(requested))

        async def is_over() -> bool:
            return await condition(shoal) is None and await shoal.settled()

        await mine.annotate(ROTATE_ANNOTATION, datetime.now(UTC).isoformat())
        await until(lambda: condition(shoal), lambda found: "WaitingFor" in str(found))
        await mine.annotate(DROP_ANNOTATION, f"force@{datetime.now(UTC).isoformat()}")
        await until(is_over, within=SECONDS)
        rotated = await shoal.authorities.read()
        async with mine.workload() as workload:
            await workload.create(ConfigMap.of("after", "default"))
        await mine.annotate(RESTORE_ANNOTATION, name)

        await until(shoal.is_restored, within=SECONDS)
    async with mine.workload() as workload:
        names = {found.name for found in (await workload.list(ConfigMap, "default")).items}
    assert "before" in names
    assert "after" not in names
    assert {purpose: found.data for purpose, found in (await shoal.authorities.read()).items()} == {
        purpose: found.data for purpose, found in rotated.items()
    }
