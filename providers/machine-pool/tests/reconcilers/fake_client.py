"""A management cluster in memory, as far as the reconcilers use it."""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from capelin.api import BaseObject, Resource
from capelin.client import Client, NotFound
from capelin.controller import Context
from capelin.controller.events import Recorder

Kind = type[BaseObject] | Resource


class FakeRecorder:
    """Ignores events."""

    def record(self, _: object) -> None:
        """Nobody reads them."""


@dataclass
class FakeClient:
    """Keeps objects by kind and name, and the names of the requests that change one."""

    objects: dict[tuple[str, str], dict[str, Any]] = field(
        default_factory=dict[tuple[str, str], dict[str, Any]]
    )
    changes: list[str] = field(default_factory=list[str])
    manager: str = "test"

    @property
    def ctx(self) -> Context:
        client, recorder = cast("Client", self), cast("Recorder", FakeRecorder())
        return Context(client, logging.getLogger(__name__), recorder)

    def add(self, *objects: BaseObject) -> None:
        for obj in objects:
            manifest = obj.dump()
            manifest["metadata"].setdefault("uid", obj.name)
            self.objects[obj.resource.kind, obj.name] = manifest

    async def find(self, kind: Any, name: str, _namespace: str | None = None) -> Any:
        manifest = self.objects.get((_kind(kind), name))
        return manifest if manifest is None or isinstance(kind, Resource) else kind.read(manifest)

    async def get(self, kind: Any, name: str, namespace: str | None = None) -> Any:
        found = await self.find(kind, name, namespace)
        if found is None:
            raise NotFound(404, "NotFound")
        return found

    async def iterate(
        self, kind: Any, _namespace: str | None = None, *, labels: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Any]:
        for (name, _), manifest in list(self.objects.items()):
            if name != _kind(kind):
                continue
            present: dict[str, str] = manifest["metadata"].get("labels", {})
            if (labels or {}).items() <= present.items():
                yield kind.read(manifest)

    async def apply_status(self, wanted: Any, *, live: Any, resource: Resource) -> Any:
        manifest = self.objects.get((resource.kind, wanted["metadata"]["name"]))
        if manifest is None:
            raise NotFound(404, "NotFound")
        if manifest.get("status") == wanted["status"]:
            return live
        manifest["status"] = wanted["status"]
        self.changes.append(f"status {resource.kind}")
        return dict(manifest)

    async def apply(self, wanted: Any, *, live: Any, resource: Resource, manager: str) -> Any:
        assert manager.startswith(self.manager)
        metadata = self.objects[resource.kind, wanted["metadata"]["name"]]["metadata"]
        for name in ("finalizers", "ownerReferences"):
            added = [
                item
                for item in wanted["metadata"].get(name, [])
                if item not in metadata.get(name, [])
            ]
            metadata[name] = [*metadata.get(name, []), *added]
        return {**live, "metadata": metadata}

    async def apply_fields(self, obj: Any, fields: Mapping[str, Any]) -> Any:
        manifest = self.objects[obj.resource.kind, obj.name]
        for path, value in fields.items():
            section, name = path.split(".")
            manifest.setdefault(section, {})[name] = value
            shown: object = len(cast("list[Any]", value)) if isinstance(value, list) else value
            self.changes.append(f"{name}: {shown}")
        kind = cast("Any", type(obj))
        return kind.read(manifest)

    async def patch(
        self,
        resource: Resource,
        name: str,
        _namespace: str | None,
        patch: Sequence[Mapping[str, Any]],
        **_: str,
    ) -> Any:
        assert patch[-1]["op"] == "remove"
        manifest = self.objects.pop((resource.kind, name))
        self.changes.append(f"let {name} go")
        metadata: dict[str, Any] = {**manifest["metadata"], "finalizers": []}
        return {**manifest, "metadata": metadata}

    async def create(self, obj: BaseObject) -> BaseObject:
        self.changes.append("create")
        self.add(obj)
        return obj

    async def delete(self, kind: Kind, name: str, *_: str, **__: str) -> bool:
        self.changes.append(f"delete {_kind(kind)} {name}")
        return self.objects.pop((_kind(kind), name), None) is not None


def _kind(kind: Any) -> str:
    return kind.kind if isinstance(kind, Resource) else kind.resource.kind
