"""Backups and restores of control planes on the pods of a real cluster, to a real S3 server."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest
from capelin.api.core import ConfigMap, Node, Pod, Secret
from capelin.client import Client, Expired, read_endpoints
from capelin.testing.waiting import until
from capelin_cli.clusters.backups import BackupPlace
from capelin_cli.clusters.restores import create_again, read_lost_cluster
from capelin_cli.environments.connection import ClusterName
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION

from tests.s3.versitygw import BUCKET, KEY_ID, SECRET, SECRET_DATA, VERSITYGW, S3Server

from .conftest import VERSIONS, namespace_in
from .hosted import Hosted
from .kind_cluster import KindCluster
from .machines import (
    KUBECTL,
    POD_CIDR,
    addons,
    are_ready,
    containers,
    join,
    machines,
    run_pods,
    use,
)
from .management_clusters import (
    backed_up,
    destination,
    is_restored,
    load_image,
    management_cluster,
    portable_endpoint,
    provider,
)

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs_programs(VERSITYGW)]
NEW = VERSIONS[-1]


@pytest.fixture(scope="module")
def image(kind: KindCluster) -> str:
    """The image of the provider, on the node."""
    return load_image(kind)


@pytest.mark.parametrize(
    ("members", "to_s3"), [(1, False), (3, True)], ids=["one-folder", "three-s3"]
)
async def test_a_restore_returns_to_the_backup_and_clients_notice_it(
    unmanaged: Hosted,
    server: S3Server,
    tmp_path: Path,
    image: str,
    members: int,
    to_s3: bool,
    record_property: Callable[[str, object], None],
) -> None:
    hosted, folder = unmanaged, tmp_path / "backups"
    folder.mkdir()
    stores = Stores(None, read_endpoints(server.endpoint)) if to_s3 else Stores(folder)
    backup = {
        "destination": destination(server if to_s3 else None),
        "encryptionKey": {"name": "backup-key"},
    }
    await hosted.client.create(Secret.of("backup-key", hosted.namespace, data={"key": b"k" * 32}))
    await hosted.client.create(Secret.of("credentials", hosted.namespace, data=SECRET_DATA))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(provider(hosted, stores, image))
        await hosted.create(NEW, replicas=2, etcd={"replicas": members, "backup": backup})
        await hosted.settles()
        async with hosted.workload() as workload:
            await workload.create(ConfigMap.of("before", "default"))
            name = await backed_up(hosted)
            await workload.create(ConfigMap.of("after", "default"))
            listed = (await workload.list(ConfigMap, "default")).resource_version
        kubeconfig = await hosted.kubeconfig()
        began = monotonic()
        await hosted.annotate(RESTORE_ANNOTATION, name)
        await until(lambda: is_restored(hosted), within=300)
        record_property("seconds of the restore", round(monotonic() - began, 1))
        await hosted.settles()
        assert await hosted.kubeconfig() == kubeconfig
        async with hosted.workload() as workload:
            names = {found.name for found in (await workload.list(ConfigMap, "default")).items}
            assert "before" in names
            assert "after" not in names
            with pytest.raises(Expired):
                async for _ in workload.watch(ConfigMap, "default", since=listed):
                    pass
            await workload.create(ConfigMap.of("later", "default"))
        await until(lambda: no_restore_pods(hosted), within=60)
        # A second restore uses other folders of the same volumes.
        name = await backed_up(hosted)
        async with hosted.workload() as workload:
            await workload.create(ConfigMap.of("much-later", "default"))
        await hosted.annotate(RESTORE_ANNOTATION, name)
        await until(lambda: is_restored(hosted), within=300)
        async with hosted.workload() as workload:
            names = {found.name for found in (await workload.list(ConfigMap, "default")).items}
            assert {"before", "later"} <= names
            assert not {"after", "much-later"} & names
        await hosted.delete_all()


async def no_restore_pods(hosted: Hosted) -> bool:
    return not [pod for pod in await hosted.pods() if "-restore-" in pod.name]


async def test_providers_that_die_during_a_restore_complete_it(
    unmanaged: Hosted, tmp_path: Path, image: str
) -> None:
    hosted, folder = unmanaged, tmp_path / "backups"
    folder.mkdir()
    backup = {"destination": {"folder": "etcd"}, "encryptionKey": {"name": "backup-key"}}
    await hosted.client.create(Secret.of("backup-key", hosted.namespace, data={"key": b"k" * 32}))
    async with provider(hosted, Stores(folder), image):
        await hosted.create(NEW, etcd={"replicas": 3, "backup": backup})
        await hosted.settles()
        async with hosted.workload() as workload:
            await workload.create(ConfigMap.of("before", "default"))
            name = await backed_up(hosted)
            await workload.create(ConfigMap.of("after", "default"))
    await hosted.annotate(RESTORE_ANNOTATION, name)
    lives = 0
    while not await is_restored(hosted):
        async with provider(hosted, Stores(folder), image):
            # Each provider lives a little longer than the one before.
            await asyncio.sleep(1.5 + 0.5 * lives)
        lives += 1
        assert lives < 60
    async with provider(hosted, Stores(folder), image):
        await hosted.settles()
        async with hosted.workload() as workload:
            names = {found.name for found in (await workload.list(ConfigMap, "default")).items}
            assert "before" in names
            assert "after" not in names
        await hosted.delete_all()
    assert lives > 2
    assert (await hosted.client.list(Pod, hosted.namespace)).items == []


@pytest.mark.timeout(1800)
@pytest.mark.needs_programs(f"kubectl@{KUBECTL}")
async def test_a_new_management_cluster_continues_from_the_bucket_with_its_nodes(
    server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    stores = Stores(None, read_endpoints(server.endpoint))
    backup = {"destination": destination(server), "encryptionKey": {"name": "backup-key"}}
    key, ca = tmp_path / "backup.key", tmp_path / "ca.pem"
    key.write_bytes(b"k" * 32)
    ca.write_text(server.ca)
    async with AsyncExitStack() as stack:
        async with management_cluster(tmp_path / "first") as first, namespace_in(first) as hosted:
            endpoint = await stack.enter_async_context(portable_endpoint())
            await endpoint.lead_to(first)
            names = await stack.enter_async_context(machines(first, 1))
            await hosted.client.create(
                Secret.of("backup-key", hosted.namespace, data={"key": key.read_bytes()})
            )
            await hosted.client.create(Secret.of("credentials", hosted.namespace, data=SECRET_DATA))
            async with provider(hosted, stores, load_image(first)):
                await hosted.create(
                    NEW,
                    network={"pods": {"cidrBlocks": [POD_CIDR]}},
                    addons=addons(first),
                    controlPlaneEndpoint=endpoint.spec,
                    etcd={"backup": backup},
                )
                await hosted.settles()
                async with hosted.workload() as workload:
                    await join(hosted, workload, names)
                    await run_pods(hosted, workload, names)
                    await workload.create(ConfigMap.of("before", "default"))
                    nodes, pods = await uids(workload), await containers(workload)
                await backed_up(hosted)
            authority = (await hosted.client.get(Secret, "one-ca", hosted.namespace)).data
            lost = hosted.namespace

        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        async with management_cluster(tmp_path / "second") as second, namespace_in(second) as other:
            hosted = replace(other, namespace=lost)
            await endpoint.lead_to(second)
            async with provider(hosted, stores, load_image(second)):
                began = monotonic()
                which = ClusterName("one", lost, "")
                place = BackupPlace(key, f"{server.endpoint}/{BUCKET}", ca_file=ca)
                cluster = await read_lost_cluster(which, place, None)
                await create_again(hosted.client, which, cluster)
                await until(lambda: is_restored(hosted), within=400)
                await hosted.settles()
                async with hosted.workload() as workload:
                    await until(lambda: are_ready(workload, 1), within=240)
                    record_property("seconds until Nodes are ready", round(monotonic() - began, 1))
                    assert await workload.find(ConfigMap, "before", "default") is not None
                    # No Node and no container was replaced: no API server without data has served.
                    assert await uids(workload) == nodes
                    assert pods.items() <= (await containers(workload)).items()
                    await use(hosted, workload, 1, tmp_path)
                assert (await hosted.client.get(Secret, "one-ca", lost)).data == authority
                await hosted.delete_all()


async def uids(workload: Client) -> dict[str, str]:
    return {node.name: node.uid for node in (await workload.list(Node)).items}
