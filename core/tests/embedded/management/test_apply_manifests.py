"""Manifests on a real API server."""

from pathlib import Path
from uuid import uuid4

import pytest
from capelin.client import Client, Config, Invalid
from capelin.embedded.management.manifests import (
    INVENTORY_CRD,
    apply_manifests,
    inventory_entry,
    localize,
)

from .kinds import definition


async def test_objects_of_a_new_kind_can_be_sent_right_after_it(kubeconfig: Path) -> None:
    group = f"{uuid4().hex}.example.com"
    thing = {
        "apiVersion": f"{group}/v1",
        "kind": "Thing",
        "metadata": {"name": "a", "namespace": "default"},
    }
    async with Client(Config.from_kubeconfig(kubeconfig)) as client:
        await apply_manifests(client, localize([definition(group)], provider="p", listener=None))
        await apply_manifests(client, [thing])
        resource = await client.resource_of(thing)
        assert await client.find(resource, "a", "default") is not None


async def test_a_manifest_that_is_refused_is_named(kubeconfig: Path) -> None:
    broken = definition("broken.example.com")
    broken["spec"]["scope"] = "Nowhere"
    async with Client(Config.from_kubeconfig(kubeconfig)) as client:
        with pytest.raises(Invalid) as caught:
            await apply_manifests(client, [broken])
    assert caught.value.__notes__ == [
        "This was about CustomResourceDefinition things.broken.example.com."
    ]


async def test_the_inventory_that_clusterctl_reads_is_taken(kubeconfig: Path) -> None:
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
        found = await client.get(resource, "control-plane-capelin", "default")
        assert (found["type"], found["version"]) == ("ControlPlaneProvider", "v0.1.0")
