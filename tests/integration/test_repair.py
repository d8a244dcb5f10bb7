"""What a person repairs: a version that cannot be had, and most of etcd's members lost."""

import asyncio
import shutil
import signal
from pathlib import Path

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Secret
from capelin.client import ApiError, Client, Config
from capelin.embedded.binaries import TESTED_KUBERNETES
from capelin.embedded.processes import Process
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane

from .homes import Home

pytestmark = pytest.mark.timeout(900)

VERSION, MISSING = TESTED_KUBERNETES[0], "v1.33.99"
_DOWNGRADE = "unsafe.topology.cluster.x-k8s.io/disable-update-version-check"
_BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
}
_BINDINGS = ("capelin-control-plane-versions", "capelin-cluster-versions")


async def done(home: Home, *arguments: str) -> None:
    ended = await home.capelin(*arguments)
    assert ended.code == 0, ended.err


async def control_plane(client: Client) -> CapelinControlPlane:
    (found,) = (await client.list(CapelinControlPlane, "default")).items
    return found


async def reason_of(client: Client, type_: str) -> str:
    """The reason of a condition of the control plane."""
    status = (await control_plane(client)).status
    conditions = status.conditions if status else []
    return next((found.reason for found in conditions if found.type == type_), "")


async def workload(client: Client) -> Client:
    secret = await client.get(Secret, "one-kubeconfig", "default")
    return Client(Config.from_secret(secret.data["value"]), manager="test")


async def end(folder: Path, member: str) -> None:
    process = Process.adopt(folder / "run", member)
    if process is not None:
        process.signal(signal.SIGKILL)
        await process.wait()


async def test_what_a_topology_and_etcd_are_repaired_by(home: Home) -> None:
    await done(home, "up", "--management-only")
    shape = ("--workers", "1", "--kubernetes-version", VERSION, "--set", "etcdReplicas=3")
    await done(home, "create", "cluster", "one", *shape)
    environment = home.environment()
    config = Config.from_kubeconfig(environment.kubeconfig)
    async with Client(config, manager="test") as client:
        await take_a_version_back(client)
        await done(home, "status", "--exit-code")

        (folder,) = (environment.workloads / "control-plane-capelin").glob("127.*")
        async with await workload(client) as api:
            await api.apply(ConfigMap.of("kept", "default"))
        # With a quorum, nothing is given up.
        refused = await home.capelin("recover", "cluster", "one", "--yes")
        assert refused.code == 2
        assert "etcd has a quorum" in refused.err

        for member in ("etcd-0", "etcd-2"):
            await asyncio.to_thread(shutil.rmtree, folder / member)
        for member in ("etcd-0", "etcd-2"):
            await end(folder, member)

        async def has_no_quorum() -> bool:
            return await reason_of(client, "EtcdClusterAvailable") == "QuorumLost"

        await until(has_no_quorum, within=120)
        await done(home, "recover", "cluster", "one", "--yes")
        assert list(folder.glob("etcd-1.before-recovery-*"))
        paused = (await control_plane(client)).metadata.annotations
        assert "cluster.x-k8s.io/paused" not in paused
        async with await workload(client) as api:
            assert await api.find(ConfigMap, "kept", "default") is not None
    await done(home, "status", "--exit-code")


async def take_a_version_back(client: Client) -> None:
    """A version that nobody has, as an object from before the admission policies may have it."""
    for name in _BINDINGS:
        await client.delete(await client.resource_of(_BINDING), name)
    await write_version(client, MISSING)

    async def is_missed() -> bool:
        found = await control_plane(client)
        conditions = found.status.conditions if found.status else []
        return found.spec.version == MISSING and any(
            condition.reason == "VersionNotAvailable" for condition in conditions
        )

    await until(is_missed, within=240)
    with pytest.raises(ApiError, match="version"):
        await write_version(client, VERSION)
    await annotate(client, "")
    await write_version(client, VERSION)
    await annotate(client, None)

    async def is_back() -> bool:
        found = await control_plane(client)
        status = found.status
        return (
            found.spec.version == VERSION
            and status is not None
            and status.observed_generation == found.metadata.generation
            and all(condition.reason != "VersionNotAvailable" for condition in status.conditions)
        )

    await until(is_back, within=120)


async def write_version(client: Client, version: str) -> None:
    await client.patch(Cluster, "one", "default", {"spec": {"topology": {"version": version}}})


async def annotate(client: Client, value: str | None) -> None:
    patch = {"metadata": {"annotations": {_DOWNGRADE: value}}}
    await client.patch(Cluster, "one", "default", patch)
