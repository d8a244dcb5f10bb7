"""Manual recovery from an unavailable version and from a lost etcd quorum."""

import asyncio
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Secret
from capelin.client import ApiError, Client, ClientError, Config, Invalid
from capelin.contract import PAUSED_ANNOTATION, find_condition
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.processes import Process

from .homes import Home

pytestmark = pytest.mark.timeout(600)

VERSION = TESTED_KUBERNETES[-1]
MISSING = f"{VERSION.rpartition('.')[0]}.99"
_UNCHECKED = "unsafe.topology.cluster.x-k8s.io/disable-update-version-check"
_BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
}
_BINDINGS = ("capelin-control-plane-versions", "capelin-cluster-versions")


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
    await until(lambda: has_condition(client, "Paused", "Paused" if paused else "NotPaused"))


async def has_condition(client: Client, type_: str, reason: str) -> bool:
    status = (await control_plane(client)).status
    conditions = status.conditions if status else []
    return any((found.type, found.reason) == (type_, reason) for found in conditions)


async def lose(folder: Path, member: str) -> None:
    """Kill a member and delete its data, like a disk failure."""
    process = Process.adopt(folder / "run", member)
    assert process is not None
    process.signal(signal.SIGKILL)
    await process.wait()
    await asyncio.to_thread(shutil.rmtree, folder / member)


async def write_version(client: Client, version: str) -> None:
    await client.patch(Cluster, "one", "default", {"spec": {"topology": {"version": version}}})


async def annotate(client: Client, value: str | None) -> None:
    patch = {"metadata": {"annotations": {_UNCHECKED: value}}}
    await client.patch(Cluster, "one", "default", patch)


async def revert_version(client: Client) -> None:
    """Revert a version as in the provider's README, for an object without admission policies."""
    for name in _BINDINGS:
        await client.delete(await client.resource_of(_BINDING), name)

    async def is_accepted() -> bool:
        # API servers notice the deletion of a binding later.
        with suppress(Invalid):
            await write_version(client, MISSING)
            return True
        return False

    await until(is_accepted)
    await until(lambda: has_condition(client, "RollingOut", "VersionNotAvailable"))

    with pytest.raises(ApiError, match="version cannot be decreased"):
        await write_version(client, VERSION)
    await annotate(client, "")
    await write_version(client, VERSION)
    await annotate(client, None)

    async def is_noticed() -> bool:
        cluster = await client.get(Cluster, "one", "default")
        condition = find_condition(cluster.status.conditions, "TopologyReconciled")
        generation = cluster.metadata.generation
        return condition is not None and condition.observed_generation == generation

    await until(is_noticed)
    name = (await control_plane(client)).name
    await client.patch(CapelinControlPlane, name, "default", {"spec": {"version": VERSION}})
    await until(lambda: has_condition(client, "RollingOut", "NotRollingOut"))


async def test_a_cluster_recovers_from_a_reverted_version_and_from_its_only_etcd_member(
    home: Home,
) -> None:
    await done(home, "up", "--management-only")
    shape = ("--workers", "0", "--kubernetes-version", VERSION, "--set", "etcdReplicas=3")
    await done(home, "create", "cluster", "one", *shape)
    environment = home.environment()
    async with Client(Config.from_kubeconfig(environment.kubeconfig), manager="test") as client:
        await revert_version(client)

        # With a quorum, the command changes nothing.
        refused = await home.capelin("recover", "cluster", "one", "--yes")
        assert refused.code == 2
        assert "etcd has a quorum" in refused.err
        await until(lambda: has_condition(client, "Paused", "NotPaused"))

        (folder,) = (environment.workloads / "control-plane-capelin").glob("127.*")
        secret = await client.get(Secret, "one-kubeconfig", "default")
        async with Client(Config.from_secret(secret.data["value"]), manager="test") as workload:

            async def is_acknowledged() -> bool:
                # The first request after the loss of a leader may fail.
                with suppress(ClientError):
                    await workload.apply(ConfigMap.of("kept", "default"))
                    return True
                return False

            # Otherwise the provider would replace the first member at once.
            await pause(client, paused=True)
            await lose(folder, "etcd-0")
            # Two of three acknowledge a write, so the survivor has it.
            await until(is_acknowledged)
            await lose(folder, "etcd-2")
            await pause(client, paused=False)
            await until(lambda: has_condition(client, "EtcdClusterAvailable", "QuorumLost"))
            await until(lambda: has_condition(client, "Available", "NotAvailable"))

            shown = await done(home, "recover", "cluster", "one", "--yes")
            assert "etcd-1" in shown
            assert await workload.find(ConfigMap, "kept", "default") is not None
        assert list(folder.glob("etcd-1.before-recovery-*"))
        assert PAUSED_ANNOTATION not in (await control_plane(client)).metadata.annotations
    await done(home, "status", "--exit-code")
