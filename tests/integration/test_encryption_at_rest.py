"""Encryption at rest is enabled, rotated and disabled while clients write and read."""

import asyncio
import base64
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest
from capelin.api import Resource
from capelin.api.core import Secret
from capelin.client import Config, tls_context
from capelin.contract import is_controlled_by
from capelin.testing.waiting import until
from capelin_control_plane.backends.processes.components import etcd_port, read_key_pair
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.keys.encryption import read_keyring
from capelin_control_plane.keys.encryption_keys import ROTATE_ANNOTATION
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import apply_manifests

from tests.faults.http2 import Http2Load
from tests.load import Load
from tests.support import encryption_states
from tests.support.definitions import definition
from tests.support.encryption_states import key_name

from .test_control_plane_kills import NAME, Shoal, shoal

__all__ = ["shoal"]  # a fixture
VERSION = TESTED_KUBERNETES[-1]
KILLS = int(os.environ.get("CAPELIN_TEST_ENCRYPTION_KILLS", "12"))
"""How often the provider is killed in each change."""
RESOURCES = ("configmaps", "secrets")
SECONDS = 300
"""A change takes up to three rollouts."""
pytestmark = [
    pytest.mark.timeout(4 * SECONDS + 40 * KILLS),
    pytest.mark.needs_programs(
        *(f"kube-{name}@{VERSION}" for name in ("apiserver", "controller-manager", "scheduler"))
    ),
]


async def stored(shoal: Shoal, resource: str) -> dict[str, bytes]:
    """The values of a resource in etcd. That of a CRD has its group before it."""
    (place,) = shoal.state.iterdir()
    state_dir = StateDir(place, place.name)
    pair = read_key_pair(state_dir.certificate("apiserver-etcd-client"))
    assert pair is not None
    trust = tls_context(
        state_dir.ca("etcd").read_bytes(), pair.certificate_pem, pair.private_key_pem
    )
    first, end = f"/registry/{resource}/", f"/registry/{resource}0"
    body = {
        "key": base64.b64encode(first.encode()).decode(),
        "range_end": base64.b64encode(end.encode()).decode(),
    }
    url = f"https://{state_dir.address}:{etcd_port(0)}/v3/kv/range"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
        session.post(url, json=body) as response,
    ):
        found = (await response.json(content_type=None)).get("kvs", [])
    decode = base64.b64decode
    return {decode(entry["key"]).decode(): decode(entry["value"]) for entry in found}


async def prefixes(shoal: Shoal) -> set[bytes]:
    """How the values of the encrypted resources begin."""
    values = [value for resource in RESOURCES for value in (await stored(shoal, resource)).values()]
    assert values
    return {
        prefix
        for value in values
        for prefix in re.findall(rb"^(?:k8s\0|k8s:enc:\w+:v1:[^:]+|)", value)
    }


def is_encrypted(shoal: Shoal, provider: str, *others: str | None) -> Callable[[], Awaitable[bool]]:
    """Whether everything is encrypted with a key other than these, and nothing remains to do."""
    return encryption_states.is_encrypted(shoal.mine, shoal.settled, provider, *others)


def is_plain(shoal: Shoal) -> Callable[[], Awaitable[bool]]:
    """Whether nothing is encrypted, and nothing remains to do."""
    return encryption_states.is_plain(shoal.mine, shoal.settled)


@asynccontextmanager
async def clients(shoal: Shoal) -> AsyncGenerator[Sequence[Load]]:
    """Clients that write objects and read them, from any API server."""
    config = Config.from_kubeconfig(await shoal.mine.kubeconfig())
    loads = [Load(config, pause=0.2), Http2Load(config, pause=0.2, keeps=True, prefix="http2")]
    running = [asyncio.create_task(load.run()) for load in loads]
    try:
        yield loads
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    for load in loads:
        assert load.failed == [], load
        assert len(load.written) > 50


async def write_secrets(shoal: Shoal, count: int) -> None:
    async with shoal.mine.workload() as workload:
        for number in range(count):
            await workload.create(Secret.of(f"mine-{number}", "default", data={"a": b"tuna"}))


async def enable_rotate_and_disable(shoal: Shoal, kills: int) -> None:
    mine = shoal.mine
    await mine.create(VERSION, replicas=2)
    await shoal.through_kills(shoal.settled, 0)
    await write_secrets(shoal, 30)
    assert await prefixes(shoal) == {b"k8s\0"}
    async with clients(shoal):
        await mine.change(apiServer={"encryption": {"resources": [*RESOURCES]}})
        await shoal.through_kills(is_encrypted(shoal, "secretbox"), kills, within=SECONDS)
        first = await key_name(mine)
        assert await prefixes(shoal) == {f"k8s:enc:secretbox:v1:{first}".encode()}
        secret = await mine.client.get(Secret, f"{NAME}-encryption", mine.namespace)
        assert is_controlled_by(secret, await mine.get())
        assert secret.type == "cluster.x-k8s.io/secret"

        await mine.annotate(ROTATE_ANNOTATION, datetime.now(UTC).isoformat())
        await shoal.through_kills(is_encrypted(shoal, "secretbox", first), kills, within=SECONDS)
        second = await key_name(mine)
        assert await prefixes(shoal) == {f"k8s:enc:secretbox:v1:{second}".encode()}
        secret = await mine.client.get(Secret, f"{NAME}-encryption", mine.namespace)
        assert {*read_keyring(secret.data["keyring"]).keys} == {second}

        aesgcm = {"provider": "aesgcm", "rotateAfterDays": 30}
        await mine.change(apiServer={"encryption": aesgcm})
        await shoal.through_kills(
            is_encrypted(shoal, "aesgcm", first, second), kills, within=SECONDS
        )
        third = await key_name(mine)
        assert await prefixes(shoal) == {f"k8s:enc:aesgcm:v1:{third}".encode()}

        await mine.change(apiServer={"encryption": None})
        await shoal.through_kills(is_plain(shoal), kills, within=SECONDS)
        assert await prefixes(shoal) == {b"k8s\0"}
    async with mine.workload() as workload:
        secrets = await workload.list(Secret, "default")
    assert sum(secret.data.get("a") == b"tuna" for secret in secrets.items) == 30
    (place,) = shoal.state.iterdir()
    assert not [*place.glob("pki/encryption-*")]


@pytest.mark.representative
async def test_keys_change_without_a_failed_request(shoal: Shoal) -> None:
    await enable_rotate_and_disable(shoal, kills=0)


async def test_keys_change_through_kills_of_the_provider(shoal: Shoal) -> None:
    await enable_rotate_and_disable(shoal, KILLS)


SECRETS_OF_A_VAULT = "pushsecrets.external-secrets.io"
"""Its group prefers v1, which serves only another kind."""


async def test_a_custom_resource_outside_of_the_preferred_version_keeps_its_key(
    shoal: Shoal,
) -> None:
    mine = shoal.mine
    name = SECRETS_OF_A_VAULT
    plural, _, group = name.partition(".")
    resource = Resource(group, "v1alpha1", "Pushsecret", plural)
    await mine.create(VERSION)
    async with shoal.mortal.undisturbed():
        await until(shoal.settled, within=SECONDS)
        async with mine.workload() as workload:
            kinds = definition(f"externalsecrets.{group}", "v1"), definition(name, "v1alpha1")
            await apply_manifests(workload, kinds)
            for number in range(10):
                secret = {"apiVersion": resource.api_version, "kind": resource.kind}
                metadata = {"name": f"mine-{number}", "namespace": "default"}
                await workload.apply({**secret, "metadata": metadata, "spec": {"fish": "tuna"}})
        keys: list[str | None] = []
        await mine.change(apiServer={"encryption": {"resources": [SECRETS_OF_A_VAULT]}})
        for _ in range(2):
            await until(is_encrypted(shoal, "secretbox", *keys), within=SECONDS)
            keys.append(await key_name(mine))
            values = (await stored(shoal, f"{group}/{plural}")).values()
            assert len(values) == 10
            prefix = f"k8s:enc:secretbox:v1:{keys[-1]}:".encode()
            assert all(value.startswith(prefix) for value in values)
            # API servers have only this key.
            async with mine.workload() as workload:
                listed = (await workload.list(resource, "default")).items
            assert [found["spec"] for found in listed] == [{"fish": "tuna"}] * 10
            await mine.annotate(ROTATE_ANNOTATION, datetime.now(UTC).isoformat())
