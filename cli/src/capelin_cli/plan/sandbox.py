"""A throw-away management cluster with Cluster API's real core, and no other provider."""

import asyncio
import base64
import json
import os
import shutil
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, cast

import aiohttp
from capelin.api import Resource, Unstructured
from capelin.api.capi import Cluster, ExtensionConfig, Machine, MachinePool
from capelin.api.core import Namespace
from capelin.client import Client, ClientOptions, Config
from capelin.errors import NotReadyError
from capelin_embedded import apiserver
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.binaries import DEFAULT_KUBERNETES
from capelin_embedded.file_locks import hold_lock, try_lock
from capelin_embedded.folders import provider_folder
from capelin_embedded.management import (
    CORE,
    Environment,
    Settings,
    apply_manifests,
    read_status,
    remove_environment,
    supervise,
)

from capelin_cli.explain.facts import at, reference_of, text_at
from capelin_cli.explain.model import Reference
from capelin_cli.plan.snapshot import uid_of
from capelin_cli.plan.stand_ins import node_name

_PREFIX: Final = "sandbox-"
_NAME: Final = "environment"
_LOCK: Final = "lock"
_SECONDS: Final = 120
_POLL_SECONDS: Final = 0.05
_SETTLING_SECONDS: Final = 0.3
"""Requests that core has begun end within this time."""
_DELAY: Final = "minReadySeconds"
_CONCURRENCY: Final = "topology.cluster.x-k8s.io/upgrade-concurrency"
_ON_DELETE: Final = "OnDelete"
_NODES: Final = "/registry/minions/"
_BUSY: Final = ("workqueue_depth{", "controller_runtime_active_workers{")
_DIAGNOSTICS: Final = f"{CORE.label}/diagnostics"


ResourceOf = Callable[[Unstructured], Resource]


@dataclass(frozen=True)
class Sandbox:
    """The API server of a running sandbox, and its etcd."""

    environment: Environment
    client: Client
    _etcd: aiohttp.ClientSession
    _etcd_url: str
    _metrics_url: str
    _installed: dict[Reference, Unstructured] = field(default_factory=dict[Reference, Unstructured])

    @property
    def kubeconfig(self) -> bytes:
        """The kubeconfig of the sandbox, which is also the workload cluster of all Clusters."""
        return self.environment.kubeconfig.read_bytes()

    async def is_idle(self) -> bool:
        """Whether core works on no object, and has none to work on now."""
        try:
            async with self._etcd.get(self._metrics_url) as response:
                return is_idle(await response.text())
        except aiohttp.ClientError:
            # It starts again.
            return False

    async def install(
        self, definitions: Sequence[Unstructured], namespaces: dict[str, dict[str, str]]
    ) -> None:
        """Create kinds of providers, and namespaces, unless they exist."""
        found = [
            {**Namespace.of(name).dump(), "metadata": {"name": name, "labels": labels}}
            for name, labels in namespaces.items()
        ]
        wanted = {reference_of(each): each for each in [*definitions, *found]}
        new = [each for key, each in wanted.items() if self._installed.get(key) != each]
        await apply_manifests(self.client, new)
        self._installed.update(wanted)

    async def load(
        self, objects: Iterable[Unstructured], resource: ResourceOf, owners: Iterable[str] = ()
    ) -> None:
        """Store objects with their owners, their status and the managers of their fields.

        The API server would give them other UIDs and other managers, and core compares both. So
        they go to etcd.
        """
        found = list(objects)
        kept = {*owners, *(uid_of(obj) for obj in found)}
        await asyncio.gather(*(self._put(resource(obj), stored(obj, kept)) for obj in found))

    @asynccontextmanager
    async def loading(
        self, objects: Iterable[Unstructured], resource: ResourceOf
    ) -> AsyncGenerator[None]:
        """Store the objects of Clusters. Core begins to work on them after the block."""
        found = list(objects)
        kept = {uid_of(obj) for obj in found}
        clusters = [obj for obj in found if obj["kind"] == Cluster.resource.kind]
        for obj in clusters:
            await self._put(resource(obj), paused(stored(obj, kept)))
        rest = [obj for obj in found if obj["kind"] != Cluster.resource.kind]
        await self.load(rest, resource, kept)
        yield
        for obj in clusters:
            await self._put(resource(obj), stored(obj, kept))

    async def clear(self, resources: Iterable[Resource]) -> None:
        """Remove all objects of these kinds, and all Nodes, until core creates no others."""
        kinds = [_prefix(each) for each in (*resources, ExtensionConfig.resource)]

        async def remove() -> int:
            return sum([await self._remove(prefix) for prefix in (*kinds, _NODES)])

        async with asyncio.timeout(_SECONDS):
            await until_gone(self.is_idle, remove)

    async def _remove(self, prefix: str) -> int:
        body = {"key": _base64(prefix), "range_end": _end_of(prefix)}
        return int((await self._call("deleterange", body)).get("deleted", 0))

    async def _put(self, resource: Resource, obj: Unstructured) -> None:
        key = reference_of(obj)
        path = _prefix(resource) + (f"{key.namespace}/" if resource.namespaced else "") + key.name
        value = json.dumps(obj, separators=(",", ":")) + "\n"
        await self._call("put", {"key": _base64(path), "value": _base64(value)})

    async def _call(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._etcd.post(f"{self._etcd_url}/v3/kv/{verb}", json=body) as response:
            response.raise_for_status()
            return cast("dict[str, Any]", await response.json())


async def until_gone(
    is_idle: Callable[[], Awaitable[bool]], remove: Callable[[], Awaitable[int]]
) -> None:
    """Remove objects until an idle core has created no others.

    A reconciliation that began before may create an object again.
    """
    while True:
        was_idle = await is_idle()
        if await remove() == 0 and was_idle:
            return
        await asyncio.sleep(_SETTLING_SECONDS)


def is_idle(metrics: str) -> bool:
    """Whether no queue of a controller has an object, and no worker is busy."""
    return not any(
        line.startswith(_BUSY) and not line.endswith(" 0") for line in metrics.splitlines()
    )


def _prefix(resource: Resource) -> str:
    return f"/registry/{resource.group}/{resource.plural}/"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _end_of(prefix: str) -> str:
    """The first key after all keys with a prefix, which ends with a slash."""
    return _base64(prefix[:-1] + chr(ord("/") + 1))


def stored(obj: Unstructured, kept: set[str]) -> Unstructured:
    """An object as etcd stores it, without owners that do not exist.

    Nodes have other names in a sandbox.
    """
    metadata = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    if owners := cast("list[Unstructured]", at(metadata, "ownerReferences") or []):
        metadata["ownerReferences"] = [owner for owner in owners if text_at(owner, "uid") in kept]
    status = cast("dict[str, Any]", obj.get("status") or {})
    if obj["kind"] == Machine.resource.kind and "nodeRef" in status:
        name = node_name(text_at(obj, "spec", "providerID"))
        obj = {**obj, "status": {**status, "nodeRef": {"name": name}}}
    if obj["kind"] == MachinePool.resource.kind:
        kept_status = {key: value for key, value in status.items() if key != "nodeRefs"}
        obj = {**obj, "status": kept_status}
    return without_delays({**obj, "metadata": metadata})


def without_delays(obj: Unstructured) -> Unstructured:
    """An object of core without the time for which Machines must be ready: a plan does not wait."""
    if reference_of(obj).group != Cluster.resource.group:
        return obj
    return {**obj, "spec": _without_delays(obj.get("spec", {}))}


def _without_delays(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_delays(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {key: _without_delays(inner) for key, inner in fields.items() if key != _DELAY}


def concurrent(
    objects: Iterable[Unstructured], changes: Iterable[Unstructured]
) -> list[Unstructured]:
    """The objects, with Clusters whose groups of workers core upgrades at the same time.

    The result is the same, and comes sooner. But a group whose machines remain until a user deletes
    them stops the upgrade of the groups after it.
    """
    found = list(objects)
    if any(word in str(obj) for word in (_ON_DELETE, _CONCURRENCY) for obj in [*found, *changes]):
        return found
    for index, obj in enumerate(found):
        if obj["kind"] == Cluster.resource.kind:
            annotations = cast("dict[str, str]", at(obj, "metadata", "annotations") or {})
            metadata = {**obj["metadata"], "annotations": {**annotations, _CONCURRENCY: "100"}}
            found[index] = {**obj, "metadata": metadata}
    return found


def paused(obj: Unstructured) -> Unstructured:
    """A Cluster whose objects core leaves unchanged."""
    return {**obj, "spec": {**obj["spec"], "paused": True}}


@asynccontextmanager
async def running_sandbox(parent: Path | None = None) -> AsyncGenerator[Sandbox]:
    """Start a sandbox, and remove it at the end of the block."""
    base = parent or provider_folder("plan")
    async with hold_lock(base / _LOCK):
        await _remove_leftovers(base)
        folder = Path(await asyncio.to_thread(mkdtemp, prefix=_PREFIX, dir=base))
        lock = try_lock(folder / _LOCK)
    environment = Environment(folder / _NAME)
    supervision: asyncio.Task[None] | None = None
    try:
        environment.make_folders()
        environment.write_settings(
            Settings(kubernetes_version=DEFAULT_KUBERNETES, core_only=True, durable=False)
        )
        supervision = asyncio.create_task(supervise(environment))
        await _is_up(environment, supervision)
        async with _opened(environment) as sandbox:
            yield sandbox
    finally:
        if supervision is not None:
            supervision.cancel()
            await asyncio.wait({supervision})
        await _remove(folder)
        if lock is not None:
            os.close(lock)


async def _is_up(environment: Environment, supervision: asyncio.Task[None]) -> None:
    async with asyncio.timeout(_SECONDS):
        while True:
            if supervision.done():
                await supervision
                raise NotReadyError("The sandbox did not start.")
            status = read_status(environment.status_file)
            if status is not None and status.is_up:
                return
            await asyncio.sleep(_POLL_SECONDS)


@asynccontextmanager
async def _opened(environment: Environment) -> AsyncGenerator[Sandbox]:
    server = await ApiServer.prepare(
        environment.folder, apiserver.Settings(version=DEFAULT_KUBERNETES, durable=False)
    )
    context = ssl.create_default_context(cafile=str(server.keys.ca("etcd-ca")))
    context.load_cert_chain(*server.keys.files("apiserver-etcd-client"))
    address, settings = server.listeners.address, environment.settings()
    url = f"https://{address}:{server.listeners.etcd_port}"
    port = settings.ports[_DIAGNOSTICS] if settings else 0
    config = Config.from_kubeconfig(environment.kubeconfig)
    async with (
        Client(config, manager="capelin-plan", options=ClientOptions(qps=0)) as client,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as etcd,
    ):
        yield Sandbox(environment, client, etcd, url, f"http://{address}:{port}/metrics")


async def _remove_leftovers(base: Path) -> None:
    """Remove the sandboxes of commands that were killed. The kernel has released their locks."""
    for folder in await asyncio.to_thread(lambda: list(base.glob(f"{_PREFIX}*"))):
        lock = try_lock(folder / _LOCK)
        if lock is not None:
            await _remove(folder)
            os.close(lock)


async def _remove(folder: Path) -> None:
    environment = Environment(folder / _NAME)
    if environment.folder.exists():
        await remove_environment(environment)
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
