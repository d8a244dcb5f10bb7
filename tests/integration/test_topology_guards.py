"""Users cannot bypass the hooks of a Cluster, and all controllers still work.

Cluster API's core, the garbage collector and the namespace controller are the real ones.
`test_move_policies` moves a Cluster of a class with clusterctl.
"""

import uuid
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import Namespace
from capelin.client import Client, Config, Forbidden, Impersonation
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_embedded.management import workload_programs
from capelin_embedded.testing.management import ManagementCluster
from capelin_machine_pool.api import CapelinMachinePool

from .lifecycle_stories import AFTER, BEFORE, PATIENCE, Stories, stories_in

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs_programs(*workload_programs(BEFORE))]

EDITOR = "editor-of-guarded"
RBAC = "rbac.authorization.k8s.io"
REFUSED = "topology controller owns"
OWNED = (CapelinControlPlane, CapelinMachinePool)


@pytest.fixture
async def stories(management_cluster: ManagementCluster) -> AsyncGenerator[Stories]:
    """A Cluster of a class, in a namespace with a user with the ClusterRole `edit`."""
    # A namespace of an earlier test may still be terminating.
    name = f"guarded-{uuid.uuid4().hex[:6]}"
    await management_cluster.require("lifecycle")
    async with (
        Client(Config.from_kubeconfig(management_cluster.kubeconfig)) as client,
        stories_in(client, name) as stories,
    ):
        await client.apply(
            {
                "apiVersion": f"{RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": EDITOR, "namespace": name},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "edit"},
                "subjects": [{"apiGroup": RBAC, "kind": "User", "name": EDITOR}],
            }
        )
        await stories.create_class()
        await stories.create("demo")
        await stories.is_admitted("demo")
        for kind in OWNED:
            await until(lambda kind=kind: client.list(kind, name), lambda found: bool(found.items))
        yield stories


@pytest.fixture
async def editor(management_cluster: ManagementCluster) -> AsyncGenerator[Client]:
    config = Config.from_kubeconfig(management_cluster.kubeconfig)
    user = replace(config.user, impersonate=Impersonation(EDITOR))
    async with Client(replace(config, user=user)) as client:
        yield client


async def control_plane(stories: Stories) -> CapelinControlPlane:
    (found,) = (await stories.client.list(CapelinControlPlane, stories.namespace)).items
    return found


async def test_core_changes_and_deletes_owned_objects_that_an_editor_cannot(
    stories: Stories, editor: Client
) -> None:
    client, namespace = stories.client, stories.namespace
    for kind in OWNED:
        (owned,) = (await client.list(kind, namespace)).items
        # The role lets the editor write objects of this kind.
        annotations = {"metadata": {"annotations": {"note": "mine"}}}
        await editor.patch(kind, owned.name, namespace, annotations)
        with pytest.raises(Forbidden, match=REFUSED):
            await editor.delete(kind, owned.name, namespace)
        with pytest.raises(Forbidden, match=REFUSED):
            await editor.request("DELETE", kind.resource.path(namespace))
    name = (await control_plane(stories)).name
    for patch in (
        {"spec": {"version": AFTER}},
        {"metadata": {"finalizers": None}},
        {"metadata": {"labels": {"topology.cluster.x-k8s.io/owned": None}}},
    ):
        with pytest.raises(Forbidden, match=REFUSED):
            await editor.patch(CapelinControlPlane, name, namespace, patch)

    replicas = {"spec": {"topology": {"controlPlane": {"replicas": 3}}}}
    await client.patch(Cluster, "demo", namespace, replicas)
    await until(
        lambda: control_plane(stories), lambda found: found.spec.replicas == 3, within=PATIENCE
    )
    await stories.delete("demo")
    for kind in OWNED:
        assert (await client.list(kind, namespace)).items == []


async def test_a_namespace_is_deleted_with_its_clusters(stories: Stories) -> None:
    client, namespace = stories.client, stories.namespace
    await client.delete(Namespace, namespace)

    async def is_gone() -> bool:
        return await client.find(Namespace, namespace) is None

    await until(is_gone, within=PATIENCE)
