"""Manifests on a real API server."""

from pathlib import Path
from uuid import uuid4

import pytest
from capelin.client import Client, Config, Invalid
from capelin_embedded.management.manifests import (
    INVENTORY_CRD,
    apply_manifests,
    inventory_entry,
    localize,
)

from tests.support.definitions import definition


async def test_objects_of_a_new_kind_can_be_applied_right_after_its_crd(kubeconfig: Path) -> None:
    group = f"{uuid4().hex}.example.com"
    thing = {
        "apiVersion": f"{group}/v1",
        "kind": "Thing",
        "metadata": {"name": "a", "namespace": "default"},
    }
    async with Client(Config.from_kubeconfig(kubeconfig)) as client:
        await apply_manifests(
            client, localize([definition(f"things.{group}", "v1")], provider="p", listener=None)
        )
        await apply_manifests(client, [thing])
        resource = await client.resource_of(thing)
        assert await client.find(resource, "a", "default") is not None


async def test_the_error_names_a_rejected_manifest(kubeconfig: Path) -> None:
    broken = definition("things.broken.example.com", "v1")
    broken["spec"]["scope"] = "Nowhere"
    async with Client(Config.from_kubeconfig(kubeconfig)) as client:
        with pytest.raises(Invalid) as caught:
            await apply_manifests(client, [broken])
    assert caught.value.__notes__ == [
        "This was about CustomResourceDefinition things.broken.example.com."
    ]


async def test_the_api_server_accepts_the_inventory_of_clusterctl(kubeconfig: Path) -> None:
    entry = inventory_entry(
        name="capelin",
        kind="ControlPlaneProvider",
        label="control-plane-capelin",
        version="v0.1.0",
        namespace="default",
    )
    async with Client(Config.from_kubeconfig(kubeconfig)) as client:
        await apply_manifests(client, [INVENTORY_CRD])
        await apply_manifests(client, [entry])
        resource = await client.resource_of(entry)
        stored = await client.get(resource, "control-plane-capelin", "default")
        assert (stored["type"], stored["version"]) == ("ControlPlaneProvider", "v0.1.0")
