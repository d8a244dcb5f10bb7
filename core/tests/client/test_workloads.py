from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from capelin.api.core import Namespace, Secret
from capelin.client import Client, ConfigError, NotFound, WorkloadClients

from tests.support.clock import MonotonicClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def workloads(client: Client) -> AsyncIterator[WorkloadClients]:
    workloads = WorkloadClients(client)
    yield workloads
    await workloads.close()


@pytest.fixture(scope="session")
def content(kubeconfig: Path) -> bytes:
    """A kubeconfig with embedded credentials."""
    return kubeconfig.read_bytes()


async def publish(client: Client, namespace: str, cluster: str, kubeconfig: bytes) -> None:
    """Store a kubeconfig in the Secret that Cluster API would create."""
    secret = Secret.of(f"{cluster}-kubeconfig", namespace, data={"value": kubeconfig})
    await client.apply(secret)


async def is_open(client: Client) -> bool:
    try:
        return bool(await client.get(Namespace, "default"))
    except RuntimeError:
        return False


async def test_the_kubeconfig_secret_provides_one_client(
    client: Client, workloads: WorkloadClients, namespace: str, content: bytes
) -> None:
    await publish(client, namespace, "prod", content)
    async with workloads.client("prod", namespace) as first:
        assert await is_open(first)
    async with workloads.client("prod", namespace) as second:
        assert second is first
        assert second.manager == client.manager
    assert await is_open(first)


async def test_a_changed_kubeconfig_replaces_the_client(
    client: Client, workloads: WorkloadClients, namespace: str, content: bytes
) -> None:
    await publish(client, namespace, "prod", content)
    async with workloads.client("prod", namespace) as old:
        await client.patch(
            Secret, "prod-kubeconfig", namespace, {"metadata": {"labels": {"x": "y"}}}
        )
        async with workloads.client("prod", namespace) as same:
            assert same is old
        await publish(client, namespace, "prod", content + b"\n")
        async with workloads.client("prod", namespace) as new:
            assert new is not old
            assert await is_open(old)
        assert await is_open(new)
    assert not await is_open(old)


async def test_concurrent_users_share_one_client(
    client: Client, workloads: WorkloadClients, namespace: str, content: bytes
) -> None:
    await publish(client, namespace, "prod", content)

    async def use() -> int:
        async with workloads.client("prod", namespace) as workload:
            assert await is_open(workload)
            return id(workload)

    assert len(set(await asyncio.gather(*(use() for _ in range(20))))) == 1


async def test_a_cluster_without_a_secret_raises_not_found(
    client: Client, workloads: WorkloadClients, namespace: str, content: bytes
) -> None:
    await publish(client, namespace, "prod", content)
    async with workloads.client("prod", namespace) as workload:
        pass
    await client.delete(Secret, "prod-kubeconfig", namespace)
    with pytest.raises(NotFound, match='secrets "prod-kubeconfig" not found'):
        async with workloads.client("prod", namespace):
            pass
    assert not await is_open(workload)


async def test_a_dropped_client_closes_after_its_last_user(
    client: Client, workloads: WorkloadClients, namespace: str, content: bytes
) -> None:
    await publish(client, namespace, "prod", content)
    async with workloads.client("prod", namespace) as workload:
        await workloads.drop("prod", namespace)
        await workloads.drop("unknown", namespace)
        assert await is_open(workload)
    assert not await is_open(workload)


async def test_a_client_without_a_use_for_a_quarter_of_an_hour_closes(
    client: Client, namespace: str, content: bytes
) -> None:
    clock = MonotonicClock()
    workloads = WorkloadClients(client, clock=clock)
    for cluster in ("deleted", "prod"):
        await publish(client, namespace, cluster, content)
    async with workloads.client("deleted", namespace) as deleted:
        clock.advance(1000)
        async with workloads.client("prod", namespace) as used:
            assert await is_open(deleted)
    assert [await is_open(client) for client in (deleted, used)] == [False, True]
    await workloads.close()
    assert not await is_open(used)


EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh"}


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"exec": EXEC}, "uses exec, which would run a program"),
        ({"tokenFile": "/var/run/secrets/token"}, "uses tokenFile"),
        ({"auth-provider": {"name": "gcp"}}, "auth-provider"),
    ],
)
async def test_a_kubeconfig_that_uses_this_machine_is_rejected(
    client: Client,
    workloads: WorkloadClients,
    namespace: str,
    content: bytes,
    user: dict[str, object],
    message: str,
) -> None:
    document = yaml.safe_load(content)
    document["users"][0]["user"] = user
    await publish(client, namespace, "prod", yaml.safe_dump(document).encode())
    with pytest.raises(ConfigError, match=f"secret {namespace}/prod-kubeconfig: .*{message}"):
        async with workloads.client("prod", namespace):
            pass


async def test_a_secret_without_a_kubeconfig_is_rejected(
    client: Client, workloads: WorkloadClients, namespace: str
) -> None:
    await client.apply(Secret.of("prod-kubeconfig", namespace, data={"other": b"x"}))
    with pytest.raises(ConfigError, match="its key value is missing or empty"):
        async with workloads.client("prod", namespace):
            pass
