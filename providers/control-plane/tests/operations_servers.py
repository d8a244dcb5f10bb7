"""The API of a workload cluster and a bucket in memory, for `operations_world`."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capelin.api import Unstructured
from capelin.client import NotFound, Unreachable
from capelin.testing.fake_client import FakeClient
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.restores import backup_of
from capelin_control_plane.backup.stores import Store
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION

if TYPE_CHECKING:
    from .operations_world import World


class Workload(FakeClient):
    """The API of the workload cluster. A write stores an object with the first key of a ring."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self.world = world

    async def close(self) -> None:
        pass

    async def request(self, method: str, path: str, **options: Any) -> Any:
        world = self.world
        if not world.ready:
            raise Unreachable("connection refused")
        if path == "/metrics":
            name = "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds"
            keys = {key for server in world.ready for key in server.ring if server.plugins}
            return "\n".join(
                f'{name}{{key_id_hash="sha256:{world.generation}",provider_name="{key}-secrets"}}'
                f" {world.generation}"
                for key in sorted(keys - {"identity"})
            )
        if path == "/readyz/kms-providers":
            if not any(server.plugins for server in world.ready):
                raise NotFound(404, "NotFound", "no such check")
            return "ok"
        parameters: Mapping[str, str] = options.get("parameters") or {}
        if path == "/api/v1/secrets" and method == "GET" and "fieldSelector" not in parameters:
            items: list[Unstructured] = [
                {"metadata": {"name": it, "namespace": "default", "uid": it, "resourceVersion": ""}}
                for it in world.objects
            ]
            return {"items": items, "metadata": {}}
        if method == "PATCH" and path.rpartition("/")[2] in world.objects:
            await world.slow("rewrite")
            world.write(path.rpartition("/")[2])
            return {}
        return await super().request(method, path, **options)


class Memory(Stores):
    """A bucket in memory."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self.world = world

    @asynccontextmanager
    async def open(self, *_: Any, **__: Any) -> AsyncGenerator[Store]:
        await self.world.slow("store")
        yield Bucket(self.world)


@dataclass
class Bucket:
    """The files of backups."""

    world: "World"

    async def names(self) -> list[str]:
        return sorted(self.world.files)

    async def read(self, name: str) -> bytes | None:
        return self.world.files.get(name)

    async def open(self, name: str) -> AsyncGenerator[bytes]:
        yield self.world.files[name]

    async def create(self, name: str) -> "Put":
        return Put(self.world, name)

    async def delete(self, name: str) -> None:
        request = (await self.world.mine()).metadata.annotations.get(RESTORE_ANNOTATION, "")
        if name == f"{backup_of(request)}.json":
            self.world.needed.add(name)
        self.world.files.pop(name, None)

    async def abort_uploads(self) -> None:
        pass


@dataclass
class Put:
    """An upload."""

    world: "World"
    name: str
    content: bytes = b""

    async def write(self, data: bytes) -> None:
        self.content += data

    async def finish(self) -> None:
        self.world.files[self.name] = self.content
        if self.name.endswith(".json"):
            stem = self.name.removesuffix(".json")
            self.world.published[stem] = self.world.now
            self.world.contents[stem] = dict(self.world.objects)

    async def abort(self) -> None:
        pass
