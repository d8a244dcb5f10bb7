"""The assertions of Cluster API's own tests about control planes, with its real core."""

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

import pytest
from capelin.api import BaseObject
from capelin.api.capi import (
    Cluster,
    ClusterClass,
    Machine,
    MachineDeployment,
    MachinePool,
    MachineSet,
)
from capelin.api.core import Namespace, Secret
from capelin.client import Client
from capelin.contract import PAUSED_ANNOTATION, is_controlled_by
from capelin.testing.waiting import until
from capelin_cli.clusters.demo import demo_manifests
from capelin_cli.clusters.topology import DEMO_CLASS, ClusterOptions, new_cluster, upgrade_patch
from capelin_cli.status.readiness import wait_until_ready
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.reconciler import FINALIZER
from capelin_embedded.binaries import KNOWN_KUBERNETES
from capelin_machine_pool.api import CapelinCluster
from capelin_machine_pool.desired import FINALIZER as MACHINE_FINALIZER

from .pools import (
    OLDER,
    VERSION,
    Whole,
    condition,
    pool_manifests,
    reference,
    whole_cluster,
)

pytestmark = pytest.mark.timeout(600)

QUIET_SECONDS = float(os.environ.get("CAPELIN_TEST_QUIET_SECONDS", "30"))
"""Seconds without any change. Cluster API's own test takes two minutes."""
SECRETS = ("ca", "etcd", "proxy", "sa", "kubeconfig")
OWNERS_AND_FINALIZERS = {
    "CapelinControlPlane": ({"Cluster"}, {FINALIZER}),
    "CapelinMachine": ({"CapelinMachinePool", "Machine"}, {MACHINE_FINALIZER}),
    "CapelinMachinePool": ({"Cluster", "MachinePool"}, {MACHINE_FINALIZER}),
    "Machine": ({"MachinePool"}, {"machine.cluster.x-k8s.io"}),
    "MachinePool": ({"Cluster"}, {"machinepool.cluster.x-k8s.io"}),
    "Secret": ({"CapelinControlPlane"}, set[str]()),
}
CLASSY = "classy"


@pytest.fixture
async def whole(management: Client) -> AsyncGenerator[Whole]:
    async with whole_cluster(management, f"asserted-{uuid4().hex[:6]}") as whole:
        yield whole


async def control_plane(whole: Whole) -> CapelinControlPlane:
    return await whole.management.get(CapelinControlPlane, whole.name, whole.namespace)


@pytest.mark.representative
async def test_owners_and_finalizers_are_restored(whole: Whole) -> None:
    management, name, namespace = whole.management, whole.name, whole.namespace
    for manifest in pool_manifests(name, namespace, replicas=2):
        await management.apply(manifest)
    await until(lambda: whole.is_whole(2, VERSION))
    await until(lambda: incomplete(whole), lambda objects: not objects)
    machines = {machine.name for machine in await whole.instances()}
    # Like Cluster API's test: remove everything while the Cluster is paused. Core does not
    # reconcile Machines when a Cluster resumes. It restores the reference of a CapelinMachine to
    # an unchanged Machine only at its next sync, up to ten minutes later. Here it first restores
    # the Machines themselves.
    await management.patch(Cluster, name, namespace, {"spec": {"paused": True}})
    await until(lambda: is_paused(whole))
    removal = {"metadata": {"ownerReferences": None, "finalizers": None}}
    for obj in await owned_objects(whole):
        await management.patch(type(obj), obj.name, namespace, removal)
    await management.patch(Cluster, name, namespace, {"spec": {"paused": False}})
    await until(lambda: incomplete(whole), lambda objects: not objects)
    assert {machine.name for machine in await whole.instances()} == machines
    await whole.remove_pool()


async def owned_objects(whole: Whole) -> list[BaseObject]:
    """The objects of a cluster that have owners."""
    names = [f"{whole.name}-{purpose}" for purpose in SECRETS]
    return [
        await control_plane(whole),
        await whole.pool(),
        await whole.infrastructure(),
        *await whole.machines(),
        *await whole.instances(),
        *[await whole.management.get(Secret, name, whole.namespace) for name in names],
    ]


async def incomplete(whole: Whole) -> dict[str, tuple[set[str], set[str]]]:
    """The owners and finalizers of each object that does not have all of them."""
    mine = await control_plane(whole)
    differences: dict[str, tuple[set[str], set[str]]] = {}
    for obj in await owned_objects(whole):
        owners = {owner.kind for owner in obj.metadata.owner_references}
        finalizers = set(obj.metadata.finalizers)
        is_complete = (owners, finalizers) == OWNERS_AND_FINALIZERS[obj.resource.kind]
        if not is_complete or (isinstance(obj, Secret) and not is_controlled_by(obj, mine)):
            differences[f"{obj.resource.kind} {obj.name}"] = (owners, finalizers)
    return differences


async def is_paused(whole: Whole) -> bool:
    objects = [
        await control_plane(whole),
        await whole.pool(),
        await whole.infrastructure(),
        *await whole.machines(),
        *await whole.instances(),
    ]
    return all(condition(obj, "Paused") == "True" for obj in objects)


async def test_a_settled_cluster_does_not_change(whole: Whole) -> None:
    async def versions() -> dict[tuple[str, str], str]:
        kinds = (Cluster, CapelinControlPlane, CapelinCluster, Secret)
        return {
            (kind.resource.kind, one.name): one.metadata.resource_version
            for kind in kinds
            for one in (await whole.management.list(kind, whole.namespace)).items
        }

    async def is_settled() -> bool:
        before = await versions()
        await asyncio.sleep(5)
        return before == await versions()

    await until(is_settled)
    settled = await versions()
    await asyncio.sleep(QUIET_SECONDS)
    assert await versions() == settled


def machine_deployment(whole: Whole, version: str) -> list[Any]:
    meta = {"name": "workers", "namespace": whole.namespace}
    node = {"name": "{{ ds.meta_data.local_hostname }}"}
    return [
        {
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
            "kind": "CapelinMachineTemplate",
            "metadata": meta,
            "spec": {"template": {"spec": {}}},
        },
        {
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
            "kind": "KubeadmConfigTemplate",
            "metadata": meta,
            "spec": {"template": {"spec": {"joinConfiguration": {"nodeRegistration": node}}}},
        },
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "MachineDeployment",
            "metadata": meta,
            "spec": {
                "clusterName": whole.name,
                "replicas": 1,
                "selector": {"matchLabels": {}},
                "template": {
                    "spec": {
                        "clusterName": whole.name,
                        "version": version,
                        "bootstrap": {
                            "configRef": reference("bootstrap", "KubeadmConfigTemplate", "workers")
                        },
                        "infrastructureRef": reference(
                            "infrastructure", "CapelinMachineTemplate", "workers"
                        ),
                    }
                },
            },
        },
    ]


async def test_preflight_checks_of_machine_sets_use_the_control_planes_version(
    whole: Whole,
) -> None:
    for manifest in machine_deployment(whole, VERSION):
        await whole.management.apply(manifest)

    async def machines() -> int:
        return len((await whole.management.list(Machine, whole.namespace)).items)

    async def has_one() -> bool:
        return await machines() == 1

    await until(has_one)
    # A paused control plane keeps its old version.
    ahead = KNOWN_KUBERNETES[KNOWN_KUBERNETES.index(VERSION) + 1]
    await change_while_paused(whole, paused="true", version=ahead)
    scaled = {"spec": {"replicas": 2}}
    await whole.management.patch(MachineDeployment, "workers", whole.namespace, scaled)

    async def is_held() -> bool:
        (machine_set,) = (await whole.management.list(MachineSet, whole.namespace)).items
        messages = [c.message for c in machine_set.status.conditions if c.type == "ScalingUp"]
        return any("ControlPlaneIsStable" in message for message in messages)

    await until(is_held)
    assert await machines() == 1
    await change_while_paused(whole, paused=None, version=VERSION)


async def change_while_paused(whole: Whole, *, paused: str | None, version: str) -> None:
    """Set the version of the control plane, and pause or resume it."""
    change = {
        "metadata": {"annotations": {PAUSED_ANNOTATION: paused}},
        "spec": {"version": version},
    }
    await whole.management.patch(CapelinControlPlane, whole.name, whole.namespace, change)


@pytest.fixture
async def classy(management: Client) -> AsyncGenerator[Client]:
    """A cluster of Capelin's ClusterClass in the older version, with workers."""
    await management.apply(Namespace.of(CLASSY))
    for manifest in demo_manifests():
        manifest["metadata"]["namespace"] = CLASSY
        await management.apply(manifest)
    options = ClusterOptions(DEMO_CLASS, OLDER, 2, 2)
    found = await management.get(ClusterClass, DEMO_CLASS, CLASSY)

    async def is_taken() -> bool:
        try:
            await management.create(new_cluster(CLASSY, CLASSY, OLDER, options, found))
        except Exception:  # noqa: BLE001 - a new class is not usable at once
            return False
        return True

    await until(is_taken)
    yield management
    await management.delete(Cluster, CLASSY, CLASSY)

    async def gone() -> bool:
        return await management.find(Cluster, CLASSY, CLASSY) is None

    await until(gone)
    await management.delete(Namespace, CLASSY)


@pytest.mark.representative
async def test_a_cluster_class_upgrades_workers_after_the_control_plane(classy: Client) -> None:
    progress: list[str] = []
    await wait_until_ready(classy, CLASSY, CLASSY, 180, progress.append)
    await classy.patch(Cluster, CLASSY, CLASSY, upgrade_patch(VERSION), type="json")
    pairs: list[tuple[str | None, str | None]] = []

    async def are_upgraded() -> bool:
        (pool,) = (await classy.list(MachinePool, CLASSY)).items
        (mine,) = (await classy.list(CapelinControlPlane, CLASSY)).items
        # Read the pool first: the control plane can only be further ahead.
        now = (pool.spec.template.spec.version, mine.status.version if mine.status else None)
        if now not in pairs:
            pairs.append(now)
        return now == (VERSION, VERSION)

    await until(are_upgraded, within=180)
    assert pairs == [(OLDER, OLDER), (OLDER, VERSION), (VERSION, VERSION)]
    await wait_until_ready(classy, CLASSY, CLASSY, 180, progress.append)
