"""Users cannot bypass the hooks of a Cluster through objects that its topology owns."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Namespace
from capelin.client import Client, Config, Forbidden
from capelin.testing.users import client_of
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION
from capelin_control_plane.desired.control_plane import (
    ADDRESS_ANNOTATION,
    MOVE_ANNOTATION,
    MOVED_FROM_ANNOTATION,
    RESTORE_ANNOTATION,
)
from capelin_control_plane.keys.encryption_keys import ENCRYPTION_ANNOTATION
from capelin_control_plane.operations.rotation import DROP_ANNOTATION, ROTATE_ANNOTATION
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION, WAKE_ANNOTATION
from capelin_control_plane.provider import provider

pytestmark = pytest.mark.usefixtures("provider_crds")

OWNED = {"topology.cluster.x-k8s.io/owned": ""}
GROUP = CapelinControlPlane.resource.group
WRITES = {
    "apiGroups": [GROUP],
    "resources": ["capelincontrolplanes"],
    "verbs": ["get", "create", "patch", "update", "delete"],
}
OPERATIONS = [
    {"apiGroups": [GROUP], "resources": ["capelincontrolplanes/operations"], "verbs": ["patch"]},
    {
        "apiGroups": ["cluster.x-k8s.io"],
        "resources": ["clusters"],
        "verbs": ["create"],
    },
]
STATUS = {"apiGroups": [GROUP], "resources": ["capelincontrolplanes/status"], "verbs": ["patch"]}


@dataclass
class Bed:
    """A namespace with a control plane that a topology owns, and one that a user made."""

    namespace: str
    administrator: Client
    tenant: Client
    controller: Client
    operator: Client

    async def patch(self, client: Client, name: str, patch: dict[str, Any]) -> None:
        await client.patch(CapelinControlPlane, name, self.namespace, patch, dry_run=True)


@pytest.fixture
async def bed(client: Client, namespace: str, kubeconfig: Path) -> AsyncGenerator[Bed]:
    for name, labels in (("owned", OWNED), ("own", {})):
        await client.create(
            {
                "apiVersion": CapelinControlPlane.resource.api_version,
                "kind": "CapelinControlPlane",
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "labels": labels,
                    "finalizers": ["example.com/test"],
                },
                "spec": {"version": "v1.33.13"},
            },
            # Discovery can lag behind a kind that is served.
            resource=CapelinControlPlane.resource,
        )
    for obj in provider().objects:
        if obj["metadata"]["name"].endswith(("-topology-owned", "-operations")):
            await client.apply(obj)
    config = Config.from_kubeconfig(kubeconfig)
    async with AsyncExitStack() as stack:
        users = [
            await stack.enter_async_context(
                await client_of(client, config, f"{user}-{namespace}", {namespace: rules})
            )
            for user, rules in (
                ("tenant", [WRITES, OPERATIONS[1]]),
                ("controller", [WRITES, STATUS]),
                ("operator", [WRITES, *OPERATIONS]),
            )
        ]
        made = Bed(namespace, client, *users)
        # An admission policy becomes effective soon after it is stored.
        await until(lambda: is_forbidden(made, "owned", {"spec": {"version": "v1.34.4"}}))
        yield made
    for name in ("owned", "own"):
        if await client.find(CapelinControlPlane, name, namespace) is not None:
            await client.patch(
                CapelinControlPlane, name, namespace, {"metadata": {"finalizers": None}}
            )


async def is_forbidden(bed: Bed, name: str, patch: dict[str, Any]) -> bool:
    try:
        await bed.patch(bed.tenant, name, patch)
    except Forbidden as error:
        return "topology controller owns" in str(error)
    return False


OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "1"}


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"version": "v1.34.4"}},
        {"metadata": {"labels": {"topology.cluster.x-k8s.io/owned": None}}},
        {"metadata": {"finalizers": None}},
        {"metadata": {"ownerReferences": [OWNER]}},
    ],
)
async def test_a_user_cannot_change_an_owned_object(bed: Bed, patch: dict[str, Any]) -> None:
    assert await is_forbidden(bed, "owned", patch)
    await bed.patch(bed.tenant, "own", patch)
    for client in (bed.controller, bed.administrator):
        await bed.patch(client, "owned", patch)


async def test_a_user_may_annotate_an_owned_object(bed: Bed) -> None:
    metadata = {"annotations": {"note": "mine"}, "labels": {"note": "mine"}}
    await bed.patch(bed.tenant, "owned", {"metadata": metadata})


@pytest.mark.parametrize(
    "annotation",
    [
        RESTORE_ANNOTATION,
        ADDRESS_ANNOTATION,
        BACKUP_ANNOTATION,
        MOVE_ANNOTATION,
        MOVED_FROM_ANNOTATION,
        ROTATE_ANNOTATION,
        DROP_ANNOTATION,
        SLEEP_ANNOTATION,
        WAKE_ANNOTATION,
        ENCRYPTION_ANNOTATION,
    ],
)
async def test_an_operation_of_a_cluster_with_gates_is_a_right(bed: Bed, annotation: str) -> None:
    patch = {"metadata": {"annotations": {annotation: "x"}}}
    with pytest.raises(Forbidden, match="subresource operations"):
        await bed.patch(bed.tenant, "owned", patch)
    await bed.patch(bed.tenant, "own", patch)
    for client in (bed.controller, bed.operator):
        await bed.patch(client, "owned", patch)
    topology = {
        "classRef": {"name": "c"},
        "version": "v1.34.4",
        "controlPlane": {"metadata": patch["metadata"]},
    }
    cluster = Cluster.of(f"demo-{bed.namespace}", bed.namespace)
    manifest = {**cluster.dump(), "spec": {"topology": topology}}
    with pytest.raises(Forbidden, match="subresource operations"):
        await bed.tenant.create(manifest, dry_run=True)
    await bed.operator.create(manifest, dry_run=True)


async def test_a_user_cannot_delete_an_owned_object(bed: Bed) -> None:
    with pytest.raises(Forbidden, match="delete the Cluster"):
        await bed.tenant.delete(CapelinControlPlane, "owned", bed.namespace)
    await bed.tenant.delete(CapelinControlPlane, "own", bed.namespace)
    await bed.controller.delete(CapelinControlPlane, "owned", bed.namespace)


async def test_owned_objects_can_be_deleted_in_a_terminating_namespace(bed: Bed) -> None:
    await bed.administrator.delete(Namespace, bed.namespace)
    # In such a namespace, any user with permission may delete, like the namespace controller.
    await until(lambda: _is_terminating(bed))
    await bed.tenant.delete(CapelinControlPlane, "owned", bed.namespace)


async def test_the_namespace_controller_deletes_owned_objects(bed: Bed) -> None:
    await bed.administrator.delete(Namespace, bed.namespace)

    async def are_deleted() -> bool:
        found = (await bed.administrator.list(CapelinControlPlane, bed.namespace)).items
        return all(control_plane.metadata.deletion_timestamp for control_plane in found)

    await until(are_deleted)


@pytest.mark.integration
@pytest.mark.representative
async def test_the_garbage_collector_deletes_owned_objects(bed: Bed) -> None:
    owner = await bed.administrator.create(ConfigMap.of("owner", bed.namespace))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid}
    metadata = {"metadata": {"ownerReferences": [reference]}}
    name, namespace = "owned", bed.namespace
    await bed.administrator.patch(CapelinControlPlane, name, namespace, metadata)
    await bed.administrator.delete(ConfigMap, "owner", namespace)

    async def is_deleted() -> bool:
        found = await bed.administrator.find(CapelinControlPlane, name, namespace)
        return found is None or found.metadata.deletion_timestamp is not None

    await until(is_deleted)


async def _is_terminating(bed: Bed) -> bool:
    found = await bed.administrator.get(Namespace, bed.namespace)
    return found.metadata.deletion_timestamp is not None
