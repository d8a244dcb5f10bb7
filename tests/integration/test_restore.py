"""Backup and restore of a cluster with the command, with real parts."""

import json
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.api.capi import Machine
from capelin.api.core import ConfigMap, Node, Secret
from capelin.client import Client, ClientError, Config
from capelin.contract import is_condition_true
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_embedded.binaries import TESTED_KUBERNETES

from tests.s3.versitygw import BUCKET, KEY_ID, SECRET, SECRET_DATA, VERSITYGW, s3_server

from .homes import Home

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs_programs("etcdutl", VERSITYGW)]
VERSION = TESTED_KUBERNETES[0]
ACCOUNT_TOKEN = "kubernetes.io/service-account-token"
ACCOUNT_ANNOTATION = "kubernetes.io/service-account.name"
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

        await restore_a_moment(home, client, root)
        await done(home, "backup", "cluster", "one")

        async def only_the_newest() -> bool:
            names = (await done(home, "backups", "-c", "one")).splitlines()[1:]
            # The archive of changes continues the last backup but one.
            return len(names) == 2 and not any(first in name for name in names)

        await until(only_the_newest)
    assert "keeps all its backups" in await done(home, "backups", "prune", "one", "--yes")
    await done(home, "status", "--exit-code")


async def restore_a_moment(home: Home, client: Client, root: Path) -> None:
    """Have the changes archived, and restore the data from before a mistake."""
    text = await refused(home, "restore", "cluster", "one", "--at", "yesterday", "--yes")
    assert "is not a moment in the past" in text
    name = (await control_plane(client)).name
    backup = {"continuous": True, "schedule": "0 3 * * *"}
    patch = {"spec": {"etcd": {"backup": backup}}}
    await client.patch(CapelinControlPlane, name, "default", patch)

    async def is_archived() -> bool:
        status = (await control_plane(client)).status
        return status is not None and is_condition_true(status.conditions, "ArchiveHealthy")

    await until(is_archived, within=120)
    async with workload_of(client, "one") as workload:
        await workload.apply(ConfigMap.of("precious", "default"))
        written = time.time()

        async def is_written() -> bool:
            return last_archived(root) > written

        await until(is_written, within=60)
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        await workload.delete(ConfigMap, "precious", "default")
        await done(home, "restore", "cluster", "one", "--at", moment, "--yes")
        assert (await workload.find(ConfigMap, "precious", "default")) is not None


def last_archived(root: Path) -> float:
    """When the provider last wrote changes."""
    return max((file.stat().st_mtime for file in root.rglob("changes-*")), default=0.0)


async def test_a_copy_is_separate_from_its_source(home: Home, tmp_path: Path) -> None:
    """The copy has the data of the source, and nothing else in common with it."""
    root = tmp_path / "backups"
    root.mkdir()
    await done(home, "up", "--management-only", "--backup-folder", str(root))
    shape = ("--workers", "1", "--kubernetes-version", VERSION)
    await done(home, "create", "cluster", "one", *shape)
    async with management(home) as client:
        await configure(client)
        encryption = {"spec": {"apiServer": {"encryption": {"provider": "secretbox"}}}}
        name = (await control_plane(client)).name
        await client.patch(CapelinControlPlane, name, "default", encryption)
        await done(home, "wait", "cluster", "one")
        await until(lambda: is_encrypted(client))
        async with workload_of(client, "one") as source:
            await source.apply(ConfigMap.of("before", "default"))
            await source.apply(Secret.of("stored", "default", data={"a": b"tuna"}))
            account = {ACCOUNT_ANNOTATION: "default"}
            token = Secret.of("token", "default")
            token.type, token.metadata.annotations = ACCOUNT_TOKEN, account
            await source.create(token)
            old_token = await until(lambda: token_in(source))
        await done(home, "backup", "cluster", "one")
        assert "exists" in await refused(home, "restore", "cluster", "one", "--as", "one", "--yes")
        await done(home, "restore", "cluster", "one", "--as", "two", "--yes")
        assert "exists" in await refused(home, "restore", "cluster", "one", "--as", "two", "--yes")
        copied = await client.get(CapelinControlPlane, "two", "default")
        assert copied.spec.control_plane_endpoint is not None
        host = copied.spec.control_plane_endpoint.host
        async with workload_of(client, "one") as source, workload_of(client, "two") as copy:
            assert (await copy.get(Secret, "stored", "default")).data == {"a": b"tuna"}
            assert await copy.find(ConfigMap, "before", "default") is not None
            assert (await copy.list(Node)).items == []
            assert len((await source.list(Node)).items) == 1
            new_token = await until(lambda: token_in(copy))
            assert new_token != old_token
            info = await copy.get(ConfigMap, "cluster-info", "kube-public")
            assert f"https://{host}:" in info.data["kubeconfig"]
            await copy.apply(ConfigMap.of("of-the-copy", "default"))
            assert await source.find(ConfigMap, "of-the-copy", "default") is None
        # Neither CA trusts the clients of the other one.
        kubeconfig = (await client.get(Secret, "one-kubeconfig", "default")).data["value"]
        source_config = Config.from_secret(kubeconfig)
        target = Config.from_secret(
            (await client.get(Secret, "two-kubeconfig", "default")).data["value"]
        ).server
        for server in (replace(source_config.server, address=target.address), target):
            async with Client(Config(server, source_config.user), manager="test") as stranger:
                with pytest.raises(ClientError):
                    await stranger.list(ConfigMap, "default")
        await done(home, "status", "--exit-code")
        # The copy has backups of its own.
        await done(home, "backup", "cluster", "two")
        assert [path.name for path in sorted(root.glob("default/etcd/*"))] == ["one", "two"]


async def test_backups_in_a_bucket_are_verified_and_pruned(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "backups"
    root.mkdir()
    await done(home, "up", "--management-only", "--backup-folder", str(root))
    shape = ("--workers", "0", "--kubernetes-version", VERSION)
    await done(home, "create", "cluster", "one", *shape)
    async with management(home) as client, s3_server(tmp_path / "s3") as server:
        await configure(client)
        name = (await control_plane(client)).name
        await done(home, "backup", "cluster", "one")
        # As an administrator copies them. An earlier one is damaged and too old for the retention.
        folder = server.objects / "mine" / "default" / "one"
        shutil.copytree(root / "default" / "etcd" / "one", folder)
        (manifest,) = folder.glob("*.json")
        older = json.loads(manifest.read_bytes()) | {"taken_at": "2026-01-31T03:00:00Z"}
        for path in [*folder.iterdir()]:
            shutil.copy(path, folder / f"20260131T030000Z{path.suffix}")
        (folder / "20260131T030000Z.json").write_text(json.dumps(older))

        ca_file, key_file = tmp_path / "ca.crt", tmp_path / "backup.key"
        ca_file.write_text(server.ca)
        key_file.write_bytes(b"k" * 32)
        bucket = (
            *("--bucket", f"{server.endpoint}/{BUCKET}/mine"),
            *("--ca-file", str(ca_file)),
        )
        text = await refused(home, "backups", "verify", "one", *bucket)
        assert "AWS_ACCESS_KEY_ID" in text
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        verify = ("backups", "verify", "one")
        assert "keys" in await done(home, *verify, *bucket, "--key-file", str(key_file))
        text = await refused(home, *verify, "20260131T030000Z", *bucket)
        assert "cannot be restored" in text
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

        # The destination of the cluster, with the access key in its Secret.
        await client.create(Secret.of("backup-s3", "default", data=SECRET_DATA))
        s3 = {
            "endpoint": server.endpoint,
            "bucket": BUCKET,
            "prefix": "mine",
            "credentials": {"name": "backup-s3"},
            "caBundle": server.ca,
        }
        destination = {"folder": None, "s3": s3}
        patch = {"spec": {"etcd": {"backup": {"destination": destination}}}}
        await client.patch(CapelinControlPlane, name, "default", patch)
        assert "keys" in await done(home, *verify)
        assert "1 backups deleted" in await done(home, "backups", "prune", "one", "--yes")
        assert {path.stem for path in folder.iterdir()} == {manifest.stem}
        assert "keeps all its backups" in await done(home, "backups", "prune", "one", "--yes")


async def is_encrypted(client: Client) -> bool:
    """Whether objects of the only control plane are encrypted, and nothing remains to do."""
    status = (await control_plane(client)).status
    return bool(status and status.encryption and status.encryption.key) and not (
        status and status.encryption and status.encryption.stage
    )


async def token_in(workload: Client) -> bytes | None:
    """The token of the service account, as soon as the controller manager has created it."""
    return (await workload.get(Secret, "token", "default")).data.get("token")


@asynccontextmanager
async def workload_of(client: Client, cluster: str) -> AsyncGenerator[Client]:
    """A client with the kubeconfig of a cluster."""
    kubeconfig = (await client.get(Secret, f"{cluster}-kubeconfig", "default")).data["value"]
    async with Client(Config.from_secret(kubeconfig), manager="test") as workload:
        yield workload
