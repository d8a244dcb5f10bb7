"""The store follows a real API server."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster, Machine
from capelin.client import Client, Config, Unreachable
from capelin.testing.waiting import until
from capelin_cli.ui import watching
from capelin_cli.ui.store import Entry, Store
from capelin_cli.ui.watching import Watcher
from capelin_control_plane.api import CapelinControlPlane

from .objects import RESOURCES, cluster, control_plane, machine

CORE = ("clusters", "machines", "machinepools", "machinedeployments")
NAME = "prod"


@pytest.fixture(scope="module")
async def client(kubeconfig: Path, install_crds: Callable[..., None]) -> AsyncGenerator[Client]:
    names = [f"{name}.cluster.x-k8s.io" for name in CORE]
    await asyncio.to_thread(install_crds, CapelinControlPlane, *names)
    async with Client(Config.from_kubeconfig(kubeconfig)) as client:
        yield client


@asynccontextmanager
async def followed(client: Client, namespace: str | None) -> AsyncGenerator[Store]:
    store = Store(lambda: datetime.now(UTC))
    task = asyncio.create_task(Watcher(client, store, namespace).run())
    try:
        await until(lambda: not store.loading)
        yield store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def create(client: Client, namespace: str, *manifests: Unstructured) -> None:
    for each in manifests:
        metadata = each["metadata"]
        kept = {"name": metadata["name"], "namespace": namespace, "labels": metadata["labels"]}
        resource = RESOURCES[each["kind"]]
        await client.create({**each, "metadata": kept}, resource=resource)


def machine_in(namespace: str, name: str) -> Unstructured:
    made = machine(name)
    reference = {"apiGroup": "x.cluster.x-k8s.io", "kind": "X", "name": "x"}
    made["spec"] |= {"bootstrap": {"dataSecretName": "x"}, "infrastructureRef": reference}
    made["metadata"]["namespace"] = namespace
    return made


async def test_objects_are_listed_page_by_page_and_followed(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_PAGE", 2)
    machines = [machine_in(namespace, f"m{number}") for number in range(5)]
    await create(client, namespace, cluster(NAME), *machines)
    async with followed(client, namespace) as store:

        def entry() -> Entry:
            return store.entries[namespace, NAME]

        assert len(entry().machines) == 5
        # Its kind is known only from the Cluster.
        await create(client, namespace, control_plane(NAME))
        await until(lambda: store.parts)
        await client.delete(Machine, "m1", namespace)
        await until(lambda: "m1" not in entry().machines)
        await client.delete(Cluster, NAME, namespace)
        await until(lambda: not store.shown())
        assert not store.trouble


async def test_only_one_namespace_is_followed(client: Client, namespace: str) -> None:
    await create(client, namespace, cluster(NAME))
    async with followed(client, "kube-system") as store:
        assert store.shown() == []
    async with followed(client, None) as store:
        assert (namespace, NAME) in store.entries


async def test_an_api_server_that_does_not_answer_is_reported(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_PROBE_SECONDS", 0.05)
    await create(client, namespace, cluster(NAME))
    async with followed(client, namespace) as store:
        with monkeypatch.context() as patched:
            patched.setattr(client, "request", _unreachable)
            await until(lambda: "does not answer" in store.trouble)
        await until(lambda: not store.trouble)
        assert store.shown()


async def _unreachable(*_: object, **__: object) -> None:
    raise Unreachable("connection refused")
