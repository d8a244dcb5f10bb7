"""Removal of an environment's objects from a real API server."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from capelin.api import ObjectMeta, OwnerReference
from capelin.api.core import ConfigMap, Namespace, Secret
from capelin.client import ApiError, Client, Config
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.management.attach import DEFINITIONS
from capelin_embedded.management.manifests import ENVIRONMENT_LABEL, FIELD_MANAGER, apply_manifests
from capelin_embedded.management.supervision import ManagementServer
from capelin_embedded.management.uninstall import owned_only_by, remove_labelled
from capelin_embedded.testing import run

from tests.support.definitions import definition


@pytest.fixture(scope="module")
def server(capelin_test_run: Path) -> Generator[ApiServer]:
    """An API server whose objects in all namespaces the tests may remove."""
    with run.own_api_server(capelin_test_run) as server:
        yield server


def owned_by(owner: dict[str, Any], **more: Any) -> dict[str, Any]:
    metadata = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return {"metadata": {"name": "key", "namespace": "default", "ownerReferences": [reference]}} | (
        {"apiVersion": "v1", "kind": "Secret"} | more
    )


def test_owned_only_by_excludes_objects_with_other_owners() -> None:
    groups = {"cluster.x-k8s.io", "addons.cluster.x-k8s.io"}

    def of(*owners: tuple[str, str]) -> Secret:
        references = [
            OwnerReference(api_version=f"{group}/v1", kind=kind, name="a", uid="1")
            for group, kind in owners
        ]
        return Secret(metadata=ObjectMeta(name="a", owner_references=references))

    cluster = ("cluster.x-k8s.io", "Cluster")
    resource_set = ("addons.cluster.x-k8s.io", "ClusterResourceSet")
    ours = of(cluster)
    theirs = [
        of(),
        of(resource_set),
        of(cluster, resource_set),
        of(cluster, ("apps", "Deployment")),
    ]
    assert owned_only_by([ours, *theirs], groups) == [ours]


async def test_remove_labelled_removes_only_installed_objects(server: ApiServer) -> None:
    config = Config.from_kubeconfig(server.kubeconfig)
    group, other = "mine.example.com", f"{uuid4().hex}.example.com"
    base = ManagementServer(config.server, "127.0.0.1", mark="demo.1")
    async with Client(config, manager=FIELD_MANAGER) as client:
        await apply_manifests(client, [definition(f"things.{other}", "v1")])
        await client.apply(Namespace.of("before"))
        namespaces = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            for name in ("before", "new")
        ]
        inside = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "inside", "namespace": "before"},
        }
        manifests = [*namespaces, definition(f"things.{group}", "v1"), inside]
        await apply_manifests(client, await base.to_install(client, manifests))
        thing = {
            "apiVersion": f"{group}/v1",
            "kind": "Thing",
            "metadata": {"name": "a", "namespace": "default", "finalizers": ["example.com/wait"]},
        }
        await apply_manifests(client, [thing])
        stored = await client.get(await client.resource_of(thing), "a", "default")
        await client.apply(owned_by(stored))
        await client.apply(Secret.of("theirs", "default"))
        # Simulates `kubectl get -o yaml`, a new name, and `kubectl apply`.
        metadata = {"name": "copy", "namespace": "before", "labels": {ENVIRONMENT_LABEL: "demo.1"}}
        await client.apply({**inside, "metadata": metadata}, manager="kubectl")

        async with asyncio.timeout(30):
            await remove_labelled(client, "demo.1")

        listing = await client.list(DEFINITIONS)
        assert {crd["metadata"]["name"] for crd in listing.items} == {f"things.{other}"}
        assert await client.find(Secret, "key", "default") is None
        assert await client.find(Secret, "theirs", "default") is not None
        before = await client.get(Namespace, "before")
        assert before.metadata.deletion_timestamp is None
        assert ENVIRONMENT_LABEL not in before.metadata.labels
        assert await client.find(ConfigMap, "inside", "before") is None
        assert await client.find(ConfigMap, "copy", "before") is not None
        new = await client.find(Namespace, "new")
        assert new is None or new.metadata.deletion_timestamp is not None


async def test_remove_labelled_ignores_a_broken_kind_of_others(server: ApiServer) -> None:
    config = Config.from_kubeconfig(server.kubeconfig)
    base = ManagementServer(config.server, "127.0.0.1", mark="demo.1")
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "ours"},
    }
    broken = definition("things.example.com", "v1", "v2")
    broken["spec"]["conversion"] = {
        "strategy": "Webhook",
        "webhook": {
            "conversionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1"},
        },
    }
    thing = {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": "a", "namespace": "default"},
    }
    async with Client(config, manager=FIELD_MANAGER) as client:
        await apply_manifests(client, [broken])
        await client.apply(thing)
        with pytest.raises(ApiError, match="conversion webhook"):
            await client.list(await client.resource_of({**thing, "apiVersion": "example.com/v2"}))
        await apply_manifests(client, await base.to_install(client, [role]))
        resource = await client.resource_of(role)

        await remove_labelled(client, "demo.1")

        assert await client.find(resource, "ours") is None
