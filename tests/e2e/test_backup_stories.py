"""Volumes of a workload cluster are backed up before its deletion, and restored in another cluster.

Velero, the snapshot controller, its sidecars and the pods are real. The machines are containers.
"""

import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest
from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace, Pod
from capelin.client import Client
from capelin.testing.waiting import until
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import apply_manifests, required_programs, workload_programs

from tests.s3.versitygw import VERSITYGW, S3Server, s3_server

from .hosted import is_ready
from .kind_cluster import IMAGE_VERSION
from .node_images import node_image
from .operator_stories import NAMESPACE, Bed, documented_policy, operator_bed
from .volume_backups import (
    DRIVER,
    ArchiveServer,
    archive_server,
    csi_images,
    storage_manifests,
    velero_images,
    velero_manifests,
)

VERSION = TESTED_KUBERNETES[-1]
SHOP, LEDGER = "databases", "ledger"
"""The namespace that the page names, and a pod and a claim there."""
COPY = "copy"
"""The namespace for the copies by Velero."""
LOST, NEXT = "lost", "next"
VELERO = {"apiVersion": "velero.io/v1", "kind": "Restore"}
BACKUPS = Resource("velero.io", "v1", "Backup", "backups")
RESTORES = Resource("velero.io", "v1", "Restore", "restores")
Record = Callable[[str, object], None]

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.needs_programs(
        *required_programs(VERSION, ("kubeadm-bootstrap",)),
        *workload_programs(VERSION),
        *("kubectl", VERSITYGW),
    ),
]


@dataclass
class Backups:
    """An environment, and storage outside of its workload clusters."""

    bed: Bed
    archives: ArchiveServer
    objects: S3Server
    folder: Path

    async def create(self, name: str) -> None:
        """Create a workload cluster with Velero and the CSI driver."""
        await self.bed.create(name)
        await until(lambda: self.bed.ready_nodes(name), len, within=400)
        manifests = [
            *await storage_manifests(self.archives.url),
            *await velero_manifests(self.objects, self.folder),
        ]
        definitions = [each for each in manifests if each["kind"] == "CustomResourceDefinition"]
        async with self.bed.workload(name) as workload:
            await apply_manifests(workload, definitions)
            await apply_manifests(workload, (each for each in manifests if each not in definitions))
            await workload.apply(Namespace.of(SHOP))

        async def are_ready() -> bool:
            async with self.bed.workload(name) as workload:
                pods = (await workload.list(Pod)).items
            return {"velero", "kube-system", "default"} <= {
                pod.metadata.namespace for pod in pods
            } and all(map(is_ready, pods))

        await until(are_ready, within=300)

    def ledger(self, namespace: str) -> list[Unstructured]:
        """A pod that writes the name of its node to an empty volume, and prints the volume."""
        claim = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "16Mi"}},
        }
        script = "busybox test -e /data/log || echo $NODE > /data/log; busybox cat /data/log"
        container = {
            "name": LEDGER,
            "image": self.bed.helper_image(),
            "command": ["/bin/busybox", "sh", "-c", f"{script}; exec busybox sleep 100000"],
            "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        metadata = {"name": LEDGER, "namespace": namespace}
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": LEDGER}}
        pod = {
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [volume],
        }
        kinds = {"PersistentVolumeClaim": claim, "Pod": pod}
        return [
            {"apiVersion": "v1", "kind": kind, "metadata": dict(metadata), "spec": spec}
            for kind, spec in kinds.items()
        ]


@pytest.fixture(scope="module")
async def backups(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Backups]:
    """An environment whose machines have the images of Velero and of the CSI driver."""
    folder = tmp_path_factory.mktemp("backups")
    images = {**await csi_images(), **await velero_images()}
    async with (
        node_image(IMAGE_VERSION, images=images) as image,
        operator_bed(folder, (image,)) as bed,
        s3_server(folder / "s3", bed.machines.gateway) as objects,
        archive_server(bed.machines.gateway) as archives,
    ):
        await bed.stories.create_class()
        yield Backups(bed, archives, objects, folder)


async def test_volumes_are_backed_up_before_a_deletion(
    backups: Backups, record_property: Record
) -> None:
    bed, stories = backups.bed, backups.bed.stories
    record_property("load before", os.getloadavg()[0])
    await backups.create(LOST)
    async with bed.workload(LOST) as workload:
        await apply_manifests(workload, backups.ledger(SHOP))
        (node,) = await bed.ready_nodes(LOST)
        await until(lambda: log_of(workload, SHOP), lambda log: log == f"{node}\n", within=120)
    for order, name in enumerate(("backup", "snapshots")):
        await bed.client.apply(documented_policy("backups.md", name, "ConfigMap"))
        policy = documented_policy("backups.md", name)
        policy["spec"]["order"] = order
        await bed.client.apply(policy)
    await stories.are_called("BeforeClusterDelete")

    # The deletion waits for storage that is full.
    backups.archives.is_full = True
    began = monotonic()
    await bed.client.delete(Cluster, LOST, NAMESPACE)
    await stories.wait_for_message(LOST, f"policy snapshots: VolumeSnapshot {LEDGER}-")
    await stories.wait_for_message(LOST, "waits until object.status.readyToUse")
    record_property("seconds: a backup by Velero", round(monotonic() - began, 1))
    record_property("result of Velero", await bed.result("backup"))
    record_property("result of snapshots", await bed.result("snapshots"))
    assert await stories.phase("backup", LOST) == "Done"
    stored = backups.objects.keys()
    assert any("kopia" in key for key in stored)
    assert backups.archives.archives == {}
    assert list(await bed.ready_nodes(LOST)) == [node]

    backups.archives.is_full = False
    began = monotonic()
    await until(lambda: stories.is_gone(LOST), within=600)
    record_property("seconds: until the cluster is gone", round(monotonic() - began, 1))
    assert len(backups.archives.archives) == 1

    await backups.create(NEXT)
    async with bed.workload(NEXT) as workload:
        restored = await restore_by_velero(workload, record_property)
        assert restored == f"{node}\n"
        restored = await restore_snapshot(backups, workload, record_property)
        assert restored == f"{node}\n"
        assert list(await bed.ready_nodes(NEXT)) != [node]


async def restore_by_velero(workload: Client, record: Record) -> str:
    """Restore the only backup. Returns the log of the restored pod."""
    began = monotonic()

    async def found() -> list[str]:
        listed = await workload.list(BACKUPS, "velero")
        return [backup["metadata"]["name"] for backup in listed.items]

    (backup,) = await until(found, len, within=120)
    restore = {
        **VELERO,
        "metadata": {"name": LEDGER, "namespace": "velero"},
        "spec": {
            "backupName": backup,
            "includedNamespaces": [SHOP],
            "namespaceMapping": {SHOP: COPY},
        },
    }
    await workload.create(restore, resource=RESTORES)

    async def phase() -> str:
        found = await workload.get(RESTORES, LEDGER, "velero")
        return str(found.get("status", {}).get("phase"))

    ended = {"Completed", "PartiallyFailed", "Failed", "FailedValidation"}
    assert await until(phase, ended.__contains__, within=300) == "Completed"
    log = await until(lambda: log_of(workload, COPY), len, within=120)
    record("seconds: restored by Velero", round(monotonic() - began, 1))
    return log


async def restore_snapshot(backups: Backups, workload: Client, record: Record) -> str:
    """Restore the claim by the handle in the storage. Returns the log of a pod that uses it."""
    began = monotonic()
    (handle,) = backups.archives.archives
    group = "snapshot.storage.k8s.io"
    claim, pod = backups.ledger(SHOP)
    # At least the size of the snapshot, which the driver rounds up.
    claim["spec"]["resources"]["requests"]["storage"] = "1Gi"
    claim["spec"]["dataSource"] = {"apiGroup": group, "kind": "VolumeSnapshot", "name": LEDGER}
    snapshot = {"name": LEDGER, "namespace": SHOP}
    content = {
        "driver": DRIVER,
        "deletionPolicy": "Retain",
        "source": {"snapshotHandle": handle},
        "volumeSnapshotRef": snapshot,
    }
    objects = [
        {
            "apiVersion": f"{group}/v1",
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": LEDGER},
            "spec": content,
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "VolumeSnapshot",
            "metadata": snapshot,
            "spec": {"source": {"volumeSnapshotContentName": LEDGER}},
        },
    ]
    await apply_manifests(workload, [*objects, claim, pod])
    log = await until(lambda: log_of(workload, SHOP), len, within=120)
    record("seconds: restored from a snapshot", round(monotonic() - began, 1))
    return log


async def log_of(workload: Client, namespace: str) -> str:
    """The log of the ledger's pod. Empty until it runs."""
    pod = await workload.find(Pod, LEDGER, namespace)
    if pod is None or not is_ready(pod):
        return ""
    return str(await workload.request("GET", Pod.resource.path(namespace, LEDGER, "log")))
