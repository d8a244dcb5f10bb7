"""Operations of fixtures on an API server, in their own thread: namespaces and CRDs."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeVar
from uuid import uuid4

from capelin.api import BaseObject, Unstructured, crd
from capelin.api.core import CustomResourceDefinition, Namespace
from capelin.client import Client, ClientOptions, Config, NotServed
from capelin.provider import Provider
from capelin.yaml import read_yaml

from capelin_embedded.apiserver import ApiServer
from capelin_embedded.binaries import Binaries

_PLACES: Final = {
    "cluster.x-k8s.io": ("cluster-api", "core"),
    "runtime.cluster.x-k8s.io": ("cluster-api", "core"),
    "bootstrap.cluster.x-k8s.io": ("cluster-api", "bootstrap/kubeadm"),
    "controlplane.cluster.x-k8s.io": ("cluster-api", "controlplane/kubeadm"),
    "infrastructure.cluster.x-k8s.io": ("cluster-api/test", "infrastructure/docker"),
}
"""The module, and the folder in it, by API group."""
T = TypeVar("T")

Installable = type[BaseObject] | tuple[type[BaseObject], ...] | Mapping[str, Any] | str | Provider
"""A kind, the versions of one kind, the manifest of a CRD, the name of one of Cluster API's, or a
provider: its kinds, and those of Cluster API in its permissions."""

SERVED_WITHIN = 30.0
"""The time limit for a kind to be served, in seconds."""

_POLL_SECONDS = 0.02


def kinds_in(rules: Iterable[Mapping[str, Any]]) -> list[str]:
    """Core's kinds in these permissions, by the names of their CRDs."""
    group = "cluster.x-k8s.io"
    ours = [rule for rule in rules if group in rule.get("apiGroups", ())]
    resources = [resource for rule in ours for resource in rule["resources"]]
    # Omit subresources and wildcards.
    return sorted({f"{resource}.{group}" for resource in resources if resource.isalpha()})


async def cluster_api_crds(*names: str) -> list[Unstructured]:
    """The CRDs with names such as `clusters.cluster.x-k8s.io`: core's, kubeadm's, Dev's.

    They equal those in Cluster API's sources: nothing converts between their versions.
    """
    binaries = Binaries()
    found: list[Unstructured] = []
    for name in names:
        plural, _, group = name.partition(".")
        module, folder = _PLACES[group]
        bases = await binaries.module_dir(module) / folder / "config/crd/bases"
        found.append(await asyncio.to_thread(_read, bases / f"{group}_{plural}.yaml"))
    return found


def _read(file: Path) -> Unstructured:
    return read_yaml(file.read_bytes())


class Administrator:
    """A client in its own event loop, for fixtures that are not coroutines."""

    def __init__(self, server: ApiServer) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="capelin-testing", daemon=True)
        self._thread.start()
        self._client = self._run(self._connect(server))

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def new_namespace(self) -> str:
        name = f"test-{uuid4().hex[:12]}"
        self._run(self._client.create(Namespace.of(name)))
        return name

    def install(self, *what: Installable) -> None:
        self._run(self._install(what))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @staticmethod
    async def _connect(server: ApiServer) -> Client:
        return await Client.connect(
            Config.from_kubeconfig(server.kubeconfig),
            manager="capelin-testing",
            options=ClientOptions(qps=0),
        )

    async def _install(self, what: Iterable[Installable]) -> None:
        manifests = [manifest for installable in what for manifest in await _manifests(installable)]
        for manifest in manifests:
            await self._client.apply(manifest, resource=CustomResourceDefinition.resource)
        try:
            async with asyncio.timeout(SERVED_WITHIN):
                await asyncio.gather(*map(self._until_served, manifests))
        except TimeoutError:
            raise await self._not_served(manifests) from None

    async def _until_served(self, manifest: Unstructured) -> None:
        """Wait until each version answers and is discoverable, both a little after Established."""
        spec = manifest["spec"]
        for version in spec["versions"]:
            group_version = f"/apis/{spec['group']}/{version['name']}"
            if version["served"]:
                await self._until_found(f"{group_version}/{spec['names']['plural']}", "items")
                await self._until_found(group_version, "resources")

    async def _until_found(self, path: str, field: str) -> None:
        while True:
            with suppress(NotServed):
                found = await self._client.request("GET", path, parameters={"limit": "1"})
                if field in found:
                    return
            await asyncio.sleep(_POLL_SECONDS)

    async def _not_served(self, manifests: list[Unstructured]) -> TimeoutError:
        complaints: list[str] = []
        for manifest in manifests:
            name = manifest["metadata"]["name"]
            definition = await self._client.get(CustomResourceDefinition, name)
            complaints += [
                f"{name}: {condition.type} is {condition.status}, {condition.message}"
                for condition in definition.status.conditions
                if condition.status != "True"
            ]
        return TimeoutError("; ".join(["these kinds are not served in time", *complaints]))


async def _manifests(what: Installable) -> list[Unstructured]:
    match what:
        case str():
            return await cluster_api_crds(what)
        case Provider():
            return [*await cluster_api_crds(*kinds_in(what.rules)), *what.crds]
        case tuple():
            return [crd(*what)]
        case type():
            return [crd(what)]
        case _:
            return [dict(what)]
