"""A cluster that lost most of its etcd members, and the command that a person recovers it with."""

import asyncio
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client, ClientError, Config
from capelin.contract import PAUSED_ANNOTATION
from capelin.embedded.processes import Process
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane

from .homes import Home

pytestmark = pytest.mark.timeout(600)


async def done(home: Home, *arguments: str) -> str:
    ended = await home.capelin(*arguments)
    assert ended.code == 0, ended.err
    return ended.out


async def control_plane(client: Client) -> CapelinControlPlane:
    (only,) = (await client.list(CapelinControlPlane, "default")).items
    return only


async def pause(client: Client, *, paused: bool) -> None:
    patch = {"metadata": {"annotations": {PAUSED_ANNOTATION: "" if paused else None}}}
    name = (await control_plane(client)).name
    await client.patch(CapelinControlPlane, name, "default", patch)
    await until(lambda: says(client, "Paused", "Paused" if paused else "NotPaused"))


async def says(client: Client, type_: str, reason: str) -> bool:
    status = (await control_plane(client)).status
    conditions = status.conditions if status else []
    return any((found.type, found.reason) == (type_, reason) for found in conditions)


async def lose(folder: Path, member: str) -> None:
    """Kill a member and delete its data, as if its disk had died."""
    process = Process.adopt(folder / "run", member)
    assert process is not None
    process.signal(signal.SIGKILL)
    await process.wait()
    await asyncio.to_thread(shutil.rmtree, folder / member)


async def test_the_only_etcd_member_that_is_left_brings_a_cluster_back(home: Home) -> None:
    await done(home, "up", "--management-only")
    await done(home, "create", "cluster", "one", "--workers", "0", "--set", "etcdReplicas=3")
    environment = home.environment()
    async with Client(Config.from_kubeconfig(environment.kubeconfig), manager="test") as client:
        # With a quorum, nothing is given up.
        refused = await home.capelin("recover", "cluster", "one", "--yes")
        assert refused.code == 2
        assert "etcd has a quorum" in refused.err
        await until(lambda: says(client, "Paused", "NotPaused"))

        (folder,) = (environment.workloads / "control-plane-capelin").glob("127.*")
        secret = await client.get(Secret, "one-kubeconfig", "default")
        async with Client(Config.from_secret(secret.data["value"]), manager="test") as workload:

            async def is_acknowledged() -> bool:
                # The first request after the loss of a leader may fail.
                with suppress(ClientError):
                    await workload.apply(ConfigMap.of("kept", "default"))
                    return True
                return False

            # Otherwise the provider would replace the first one at once.
            await pause(client, paused=True)
            await lose(folder, "etcd-0")
            # Two of three acknowledge a write: so the one that will be left has it.
            await until(is_acknowledged)
            await lose(folder, "etcd-2")
            await pause(client, paused=False)
            await until(lambda: says(client, "EtcdClusterAvailable", "QuorumLost"))
            await until(lambda: says(client, "Available", "NotAvailable"))

            shown = await done(home, "recover", "cluster", "one", "--yes")
            assert "etcd-1" in shown
            assert await workload.find(ConfigMap, "kept", "default") is not None
        assert list(folder.glob("etcd-1.before-recovery-*"))
        assert PAUSED_ANNOTATION not in (await control_plane(client)).metadata.annotations
    await done(home, "status", "--exit-code")
