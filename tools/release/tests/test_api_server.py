"""A real API server accepts the charts' manifests in a dry run."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from capelin.api import BaseObject, Unstructured
from capelin.api.capi import ExtensionConfig
from capelin.api.core import Deployment, Namespace, Service
from capelin.client import Client, Config, Invalid
from capelin.testing.waiting import until
from capelin_embedded.binaries import Binaries, Component
from capelin_release.components import helm, render_chart
from capelin_release.our_charts import our_charts
from capelin_release.tools import HELM, HELM_3

pytestmark = [pytest.mark.needs_programs(HELM), pytest.mark.timeout(300)]

EVERYTHING = {
    "podDisruptionBudget": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "metrics": {"dashboard": {"enabled": True}},
    "watch": {"namespace": "default"},
    "replicas": 3,
}
CHARTS = our_charts("0.1.0")


async def rendered(name: str, namespace: str) -> list[Unstructured]:
    values: dict[str, Any] = EVERYTHING if "files/rules.yaml" in CHARTS[name].files else {}
    if name == "capelin-lifecycle":
        values = {key: value for key, value in values.items() if key != "watch"}
        # The API server lacks cert-manager's kinds.
        values["certManager"] = {"enabled": False}
    return await render_chart(CHARTS[name], "capelin", namespace, Binaries(), values)


@pytest.mark.parametrize("name", CHARTS)
async def test_an_api_server_accepts_the_objects_of_a_chart(
    name: str, kubeconfig: Path, namespace: str, install_crds: Callable[..., None]
) -> None:
    install_crds("extensionconfigs.runtime.cluster.x-k8s.io")
    objects = await rendered(name, namespace)
    async with Client(Config.from_kubeconfig(kubeconfig), manager="helm") as client:
        for obj in objects:
            applied = await client.apply(obj, dry_run=True)
            assert applied["metadata"]["name"] == obj["metadata"]["name"]


async def test_an_api_server_rejects_an_invalid_object(kubeconfig: Path, namespace: str) -> None:
    (deployment,) = (
        obj
        for obj in await rendered("capelin-machine-pool", namespace)
        if obj["kind"] == "Deployment"
    )
    deployment["spec"]["template"]["spec"]["containers"][0]["ports"][0]["name"] = "no such port!"
    async with Client(Config.from_kubeconfig(kubeconfig), manager="helm") as client:
        await client.apply(Namespace.of(namespace))
        with pytest.raises(Invalid):
            await client.apply(deployment, dry_run=True)


class Deletions:
    """The versions at which objects of some kinds were deleted."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self.existing: set[type[BaseObject]] = set()
        self.versions: dict[type[BaseObject], list[int]] = {}

    async def follow(self, kind: type[BaseObject]) -> None:
        """Watch until cancelled."""
        named = {} if kind.resource.namespaced else {"metadata.name": self._namespace}
        namespace = None if named else self._namespace
        self.versions[kind] = []
        async for event in self._client.watch(kind, namespace, fields=named):
            self.existing.add(kind)
            if event.type == "DELETED":
                self.versions[kind].append(int(event.object.metadata.resource_version or 0))


@pytest.mark.parametrize(
    "program",
    [
        HELM,
        # A second helm build would extend the first `uvx nox` by more than a minute.
        pytest.param(HELM_3, marks=[pytest.mark.integration, pytest.mark.needs_programs(HELM_3)]),
    ],
    ids=str,
)
async def test_helm_removes_an_extension_before_its_server(
    program: Component,
    kubeconfig: Path,
    namespace: str,
    install_crds: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Cluster API calls an extension as long as its ExtensionConfig exists."""
    install_crds("extensionconfigs.runtime.cluster.x-k8s.io")
    folder = CHARTS["capelin-lifecycle"].write(tmp_path)
    where = (f"--namespace={namespace}", f"--kubeconfig={kubeconfig}")
    values = ("--set=certManager.enabled=false", f"--set=extensionConfig.name={namespace}")
    await helm(Binaries(), "install", namespace, str(folder), *where, *values, program=program)
    kinds = (ExtensionConfig, Deployment, Service)
    async with Client(Config.from_kubeconfig(kubeconfig)) as client:
        deletions = Deletions(client, namespace)
        tasks = [asyncio.create_task(deletions.follow(kind)) for kind in kinds]
        try:
            await until(lambda: deletions.existing == set(kinds))
            await helm(Binaries(), "uninstall", namespace, *where, program=program)
            await until(lambda: all(deletions.versions[kind] for kind in kinds))
            assert await client.find(ExtensionConfig, namespace) is None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    *_, config = deletions.versions[ExtensionConfig]
    assert config < min(*deletions.versions[Deployment], *deletions.versions[Service])
