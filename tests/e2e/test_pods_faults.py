"""Faults of the node and of the management API server under control planes on pods."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest
from capelin.api.core import ConfigMap
from capelin.client import ClientError
from capelin.testing.waiting import until

from .conftest import VERSIONS
from .hosted import Hosted, is_ready, under_load

OLD, NEW = VERSIONS
PAUSE_SECONDS = 30

pytestmark = pytest.mark.timeout(900)


async def test_management_restart_fails_no_request(hosted: Hosted, tmp_path: Path) -> None:
    await hosted.create(OLD, replicas=2)
    await hosted.settles()
    async with under_load(hosted, tmp_path) as clients:
        await hosted.change(version=NEW)
        await asyncio.to_thread(hosted.kind.kill_container, "kube-apiserver", "kube-system")
        await until(lambda: works(hosted), within=300)
    assert clients.failed() == []


@pytest.mark.parametrize("fault", ["paused", "restarted"])
async def test_writes_survive_an_outage_of_the_node(
    hosted: Hosted, fault: str, record_property: Callable[[str, object], None]
) -> None:
    await hosted.create(NEW, etcd={"replicas": 3})
    await hosted.settles()
    async with hosted.workload() as workload:
        await workload.create(ConfigMap.of("kept", "default", data={"a": "b"}))
    if fault == "paused":
        await docker("pause", hosted.kind.node)
        try:
            await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await docker("unpause", hosted.kind.node)
    else:
        await docker("restart", hosted.kind.node)
    began = monotonic()
    await until(lambda: works(hosted), within=300)
    record_property(f"seconds until it works, the node {fault}", round(monotonic() - began, 1))
    async with hosted.workload() as workload:
        assert (await workload.get(ConfigMap, "kept", "default")).data == {"a": "b"}
        await workload.create(ConfigMap.of("later", "default"))
    conditions = await hosted.conditions()
    assert conditions["EtcdClusterAvailable"] == conditions["Available"] == "True"


async def works(hosted: Hosted) -> bool:
    """Whether it answers and matches its spec, even if the management cluster may not answer."""
    try:
        async with asyncio.timeout(10), hosted.workload() as workload:
            await workload.list(ConfigMap, "default")
            return await hosted.is_settled() and all(map(is_ready, await hosted.pods()))
    except (ClientError, TimeoutError):
        return False


async def docker(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec("docker", *arguments)
    assert await process.wait() == 0
