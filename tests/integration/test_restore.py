"""Backup and restore of a cluster with the command, with real parts."""

from pathlib import Path

import pytest
from capelin.api.capi import Machine
from capelin.api.core import ConfigMap, Node, Secret
from capelin.client import Client, Config
from capelin.embedded.binaries import TESTED_KUBERNETES
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane

from .homes import Home

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs_programs("etcdutl")]
VERSION = TESTED_KUBERNETES[0]
BACKUP = {
    "destination": {"folder": "etcd"},
    "encryptionKey": {"name": "backup-key"},
    "retention": {"last": 1},
}


async def done(home: Home, *arguments: str) -> str:
    ended = await home.capelin(*arguments)
    assert ended.code == 0, ended.err
    return ended.out


async def refused(home: Home, *arguments: str) -> str:
    ended = await home.capelin(*arguments)
    assert ended.code != 0, ended.out
    return " ".join(ended.err.split())


async def control_plane(client: Client) -> CapelinControlPlane:
    (only,) = (await client.list(CapelinControlPlane, "default")).items
    return only


async def configure(client: Client) -> None:
    """Configure backups as a user does."""
    await client.create(Secret.of("backup-key", "default", data={"key": b"k" * 32}))
    name = (await control_plane(client)).name
    patch = {"spec": {"etcd": {"backup": BACKUP}}}
    await client.patch(CapelinControlPlane, name, "default", patch)


async def test_a_new_environment_continues_from_the_folder_of_backups(
    home: Home, tmp_path: Path
) -> None:
    """The procedure for the loss of the management cluster."""
    root = tmp_path / "backups"
    root.mkdir()
    shape = ("--kubernetes-version", VERSION)
    await done(home, "up", "--management-only", "--backup-folder", str(root))
    await done(home, "create", "cluster", "one", "--workers", "1", *shape)
    async with management(home) as client:
        await configure(client)
        kubeconfig = (await client.get(Secret, "one-kubeconfig", "default")).data["value"]
        async with Client(Config.from_secret(kubeconfig), manager="test") as workload:
            await workload.apply(ConfigMap.of("before", "default"))
        await done(home, "backup", "cluster", "one")
    await done(home, "down", "--yes")

    await done(home, "up", "--management-only", "--backup-folder", str(root))
    key = tmp_path / "backup.key"
    key.write_bytes(b"k" * 32)
    assert "keys" in await done(home, "backups", "verify", "one", "--key-file", str(key))
    assert "does not exist" in await refused(home, "restore", "cluster", "one", "--yes")
    await done(home, "restore", "cluster", "one", "--key-file", str(key), "--yes")
    # The old kubeconfig is valid: the CA and the address are the same.
    async with (
        management(home) as client,
        Client(Config.from_secret(kubeconfig), manager="test") as workload,
    ):
        assert (await workload.find(ConfigMap, "before", "default")) is not None

        async def new_worker_is_ready() -> bool:
            machines = (await client.list(Machine, "default")).items
            named = {
                machine.status.node_ref.name for machine in machines if machine.status.node_ref
            }
            nodes = {node.name: node for node in (await workload.list(Node)).items}
            return len(named) == 1 and all(
                name in nodes and is_ready(nodes[name]) for name in named
            )

        # The data has the Node of the lost worker, and not that of the new one.
        await until(new_worker_is_ready)
        assert len((await workload.list(Node)).items) == 2
    await done(home, "status", "--exit-code")


def is_ready(node: Node) -> bool:
    """Whether a Node reports that it is ready."""
    return any((it.type, it.status) == ("Ready", "True") for it in node.status.conditions)


def management(home: Home) -> Client:
    return Client(Config.from_kubeconfig(home.environment().kubeconfig), manager="test")


@pytest.mark.representative
async def test_a_cluster_is_backed_up_verified_and_restored(home: Home, tmp_path: Path) -> None:
    root = tmp_path / "backups"
    root.mkdir()
    await done(home, "up", "--management-only", "--backup-folder", str(root))
    shape = ("--workers", "1", "--kubernetes-version", VERSION)
    await done(home, "create", "cluster", "one", *shape)
    assert "has no backups" in await refused(home, "backup", "cluster", "one")
    environment = home.environment()
    async with Client(Config.from_kubeconfig(environment.kubeconfig), manager="test") as client:
        await configure(client)
        secret = await client.get(Secret, "one-kubeconfig", "default")
        workload = Client(Config.from_secret(secret.data["value"]), manager="test")
        async with workload:
            await workload.apply(ConfigMap.of("before", "default"))
            assert "revision" in await done(home, "backup", "cluster", "one")
            await workload.apply(ConfigMap.of("after", "default"))
            assert "keys" in await done(home, "backups", "verify", "one")
            first = (await done(home, "backups", "-c", "one")).splitlines()[1].split()[2]

            text = await refused(home, "restore", "cluster", "one", "--backup", "x", "--yes")
            assert "not the name of a backup" in text
            missing = ("--backup", "20200101T000000Z", "--yes")
            text = await refused(home, "restore", "cluster", "one", *missing)
            assert "no usable backup 20200101T000000Z" in text
            assert (await workload.find(ConfigMap, "after", "default")) is not None

            await done(home, "restore", "cluster", "one", "--yes")
            assert (await workload.find(ConfigMap, "before", "default")) is not None
            assert (await workload.find(ConfigMap, "after", "default")) is None
        conditions = {
            condition.type
            for condition in (await control_plane(client)).status.conditions  # pyright: ignore[reportOptionalMemberAccess]
        }
        assert "Restoring" not in conditions

        await done(home, "backup", "cluster", "one")

        async def only_the_newest() -> bool:
            names = (await done(home, "backups", "-c", "one")).splitlines()[1:]
            return len(names) == 1 and first not in names[0]

        await until(only_the_newest)
    assert "keeps all its backups" in await done(home, "backups", "prune", "one", "--yes")
    await done(home, "status", "--exit-code")
