"""The API server behind a `FakeClient`."""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import unquote
from uuid import uuid4

from capelin.api import BaseObject, Resource, Unstructured, capi, core
from capelin.client import AlreadyExists, Conflict, Invalid, NotFound, NotServed, Request, Response
from capelin.json_patches import PatchError, apply_json_patch, apply_merge_patch
from capelin.testing.fake_kinds import (
    FakeKind,
    Key,
    Target,
    validate,
    without_nulls,
)
from capelin.testing.patches import Owner, Path, Paths, compare, default, merge, paths_of, prune

# The kinds of these groups have no metadata.generation, or only some of them have.
_WITHOUT_GENERATION = {"", "coordination.k8s.io", "events.k8s.io", "rbac.authorization.k8s.io"}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_SYSTEM_METADATA = (
    *("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)


@dataclass(frozen=True, slots=True)
class Stored:
    manifest: Unstructured
    """Without `managedFields`."""
    owners: tuple[Owner, ...]

    def dump(self) -> Unstructured:
        manifest = deepcopy(self.manifest)
        if self.owners:
            manifest["metadata"]["managedFields"] = [owner.dump() for owner in self.owners]
        return manifest


class FakeServer:
    """An in-memory API server. It replaces a client's `Transport`."""

    closed = False
    max_bytes = 128 << 20

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.requests: list[Request] = []
        self._now = now
        self._kinds: dict[tuple[str, str, str], FakeKind] = {}
        self._objects: dict[Key, Stored] = {}
        self._version = 0
        for kind in (*vars(core).values(), *vars(capi).values()):
            if isinstance(kind, type) and issubclass(kind, BaseObject) and kind is not BaseObject:
                self.install(kind)

    def install(self, kind: type[BaseObject] | Resource) -> None:
        entry = FakeKind.of(kind)
        resource = entry.resource
        self._kinds[resource.group, resource.version, resource.plural] = entry

    def serves(self, resource: Resource) -> bool:
        return (resource.group, resource.version, resource.plural) in self._kinds

    def add(self, resource: Resource, manifest: Unstructured) -> Unstructured:
        kind = self._kinds[resource.group, resource.version, resource.plural]
        metadata = manifest["metadata"]
        names = metadata.get("namespace", ""), metadata["name"]
        target = Target(kind, *names, "", {"fieldManager": "test"})
        added = self._update(target, None, manifest)
        if "status" in manifest:
            status = {**added.manifest, "status": manifest["status"]}
            added = self._update(replace(target, subresource="status"), added, status)
        return self._delete(target, {}) if "deletionTimestamp" in metadata else added.dump()

    async def close(self) -> None:
        self.closed = True

    async def send(self, request: Request) -> Response:
        if self.closed:
            raise RuntimeError("the client is closed")
        self.requests.append(request)
        return Response(200, "application/json", json.dumps(self._answer(request)).encode())

    def stream(self, request: Request) -> Any:
        raise NotImplementedError(f"a FakeClient has no watches: {request.path}")

    def target(self, request: Request) -> Target:
        """The subject of a request."""
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        start = 2 if parts[0] == "api" else 3
        group, version, *rest = ["", *parts[1:]] if start == 2 else parts[1:]
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
            namespace, rest = rest[1], rest[2:]
        kind = self._kinds.get((group, version, rest[0] if rest else ""))
        if kind is None or len(rest) > 3 or rest[2:] not in ([], ["status"]):
            raise _not_served()
        name, subresource = [*rest[1:], "", ""][:2]
        return Target(kind, namespace, name, subresource, request.parameters)

    def _answer(self, request: Request) -> Any:
        parts = request.path.strip("/").split("/")
        if len(parts) <= (2 if parts[0] == "api" else 3):
            return self._discovery(*parts)
        target = self.target(request)
        name = target.name
        body: Any = json.loads(request.body or b"{}")
        if not name:
            return self._list(target) if request.method == "GET" else self._create(target, body)
        match request.method:
            case "GET":
                return self._stored(target).dump()
            case "DELETE":
                return self._delete(target, body)
            case "PUT":
                return self._update(target, self._stored(target), body).dump()
            case _:
                return self._patch(target, request.content_type, body)

    def _discovery(self, root: str, *names: str) -> Unstructured:
        group, version = names if len(names) == 2 else ("", *names, "")[:2]
        if not names:
            return {"versions": ["v1"]} if root == "api" else self._groups()
        if root == "apis" and len(names) == 1:
            return self._group(*names)
        found = [
            {
                "name": r.plural,
                "singularName": r.kind.lower(),
                "kind": r.kind,
                "namespaced": r.namespaced,
                "verbs": _VERBS,
            }
            for r in (kind.resource for kind in self._kinds.values())
            if (r.group, r.version) == (group, version)
        ]
        if not found:
            raise _not_served()
        return {"kind": "APIResourceList", "resources": found}

    def _groups(self) -> Unstructured:
        names = dict.fromkeys(group for group, _, _ in self._kinds if group)
        return {"groups": [{"name": name, **self._group(name)} for name in names]}

    def _group(self, name: str) -> Unstructured:
        versions = [{"version": version} for group, version, _ in self._kinds if group == name]
        if not versions:
            raise _not_served()
        return {"kind": "APIGroup", "preferredVersion": versions[0], "versions": versions}

    def _stored(self, target: Target) -> Stored:
        stored = self._objects.get(target.key)
        if stored is None:
            raise target.error(NotFound, 404, "not found")
        return stored

    def _list(self, target: Target) -> Unstructured:
        items = [
            stored.dump()
            for key, stored in sorted(self._objects.items())
            if target.selects(key, stored.manifest)
        ]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    # Writes

    def _create(self, target: Target, manifest: Unstructured) -> Unstructured:
        metadata = manifest["metadata"]
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))  # noqa: S311
            metadata["name"] = f"{metadata['generateName']}{suffix}"
        target = replace(target, name=metadata["name"])
        if target.key in self._objects:
            raise target.error(AlreadyExists, 409, "already exists")
        metadata.pop("uid", None)
        return self._update(target, None, manifest).dump()

    def _delete(self, target: Target, options: Unstructured) -> Unstructured:
        old = self._stored(target)
        metadata = old.manifest["metadata"]
        preconditions: Mapping[str, str] = options.get("preconditions") or {}
        for name, value in preconditions.items():
            if metadata[name] != value:
                raise target.error(Conflict, 409, f"precondition failed: {name} in precondition")
        if not metadata.get("finalizers"):
            self._remove(target)
        elif "deletionTimestamp" not in metadata:
            marks = {"deletionTimestamp": self._timestamp(), "deletionGracePeriodSeconds": 0}
            if "generation" in metadata:
                marks["generation"] = metadata["generation"] + 1
            marked = {**old.manifest, "metadata": {**metadata, **marks}}
            return self._store(target, replace(old, manifest=marked)).dump()
        return old.dump()

    def _patch(self, target: Target, content_type: str, patch: Any) -> Unstructured:
        if content_type == "application/apply-patch+yaml":
            return self._apply(target, patch).dump()
        old = self._stored(target)
        if content_type == "application/json-patch+json":
            try:
                new = apply_json_patch(old.manifest, patch)
            except PatchError as error:
                raise target.error(Invalid, 422, f"cannot be patched: {error}") from None
        else:
            new = apply_merge_patch(old.manifest, patch)
        return self._update(target, old, new).dump()

    def _update(self, target: Target, old: Stored | None, new: Unstructured) -> Stored:
        new = self._prepared(target, old, new)
        schema = target.kind.schema
        before: Unstructured = old.manifest if old else {"metadata": {}}
        difference = compare(before, new, schema)
        manager = target.parameters.get("fieldManager", "unknown")
        mine = _Mine(manager, "Update", target)
        last = mine.find(old)
        owned = last.paths if last else frozenset[Path]()
        paths = (owned - difference.removed) | difference.changed
        others = _without(mine.others(old), difference.changed | difference.removed)
        return self._finish(target, old, new, [*others, mine.entry(old, paths, self._timestamp())])

    def _apply(self, target: Target, configuration: Unstructured) -> Stored:
        old = self._objects.get(target.key)
        schema = target.kind.schema
        if old is None and (target.subresource or configuration["metadata"].get("uid")):
            error = Conflict if not target.subresource else NotFound
            raise target.error(error, 409 if error is Conflict else 404, "not found")
        parts = {"apiVersion", "kind", "metadata"}
        if target.subresource:
            applied = {k: v for k, v in configuration.items() if k in {*parts, "status"}}
        else:
            applied = {k: v for k, v in configuration.items() if k != "status"}
        mine = _Mine(target.parameters["fieldManager"], "Apply", target)
        paths = paths_of(applied, schema)
        before: Unstructured = old.manifest if old else {"metadata": {}}
        new = merge(before, applied, schema)
        last = mine.find(old)
        others = mine.others(old)
        if last:
            managed = [paths, *(owner.paths for owner in others)]
            new = prune(new, schema, last.paths, managed)
        new = self._prepared(target, old, new)
        # Defaults have no owner, so they do not conflict.
        difference = compare(before, new, schema)
        conflicts = {
            (owner.manager, path) for owner in others for path in owner.paths & difference.changed
        }
        if conflicts and target.parameters.get("force") != "true":
            causes = [
                {
                    "reason": "FieldManagerConflict",
                    "message": f'conflict with "{manager}"',
                    "field": _field_name(path),
                }
                for manager, path in sorted(conflicts)
            ]
            message = f"apply failed with {len(causes)} conflicts: {causes[0]['message']}"
            raise target.error(Conflict, 409, message, causes)
        others = _without(others, difference.changed | difference.removed)
        entry = mine.entry(old, paths - difference.removed, self._timestamp())
        return self._finish(target, old, new, [entry, *others])

    def _prepared(self, target: Target, old: Stored | None, new: Unstructured) -> Unstructured:
        """The object to store: validated, with defaults and the server's own metadata."""
        given: Unstructured = new.get("metadata") or {}
        before: Unstructured = old.manifest["metadata"] if old else {}
        if old and given.get("uid", before["uid"]) != before["uid"]:
            cause = {"field": "metadata.uid", "reason": "FieldValueInvalid"}
            raise target.error(Invalid, 422, "is invalid: metadata.uid is immutable", [cause])
        version = given.get("resourceVersion")
        if old and version and version != before["resourceVersion"]:
            raise target.error(Conflict, 409, "has been modified: resourceVersion does not match")
        resource = target.kind.resource
        status = new if target.subresource or old is None else old.manifest
        spec = old.manifest if old and target.subresource else new
        prepared = {key: value for key, value in spec.items() if key != "status"}
        if "status" in status and (old or target.subresource):
            prepared["status"] = status["status"]
        metadata: Unstructured = {
            key: value
            for key, value in (before if old and target.subresource else given).items()
            if value and key not in {*_SYSTEM_METADATA, "managedFields"}
        }
        metadata |= {key: before[key] for key in _SYSTEM_METADATA if key in before}
        metadata["name"] = target.name
        if target.namespace:
            metadata["namespace"] = target.namespace
        if old is None:
            metadata["uid"] = given.get("uid") or str(uuid4())
            metadata["creationTimestamp"] = self._timestamp()
        finalizers: list[str] = metadata.get("finalizers", [])
        new_finalizers = set(finalizers) - set(cast("list[str]", before.get("finalizers", [])))
        if new_finalizers and "deletionTimestamp" in before:
            cause = {"field": "metadata.finalizers", "reason": "FieldValueForbidden"}
            message = "is being deleted: no new finalizers can be added"
            raise target.error(Invalid, 422, message, [cause])
        whole = {**prepared, "apiVersion": resource.api_version, "kind": resource.kind}
        whole = default(without_nulls({**whole, "metadata": metadata}), target.kind.schema)
        validate(target, whole)
        return whole

    def _finish(
        self, target: Target, old: Stored | None, new: Unstructured, owners: Iterable[Owner]
    ) -> Stored:
        metadata = new["metadata"]
        if target.kind.resource.group not in _WITHOUT_GENERATION:
            generation = old.manifest["metadata"]["generation"] if old else 1
            changed = old is not None and _content(old.manifest) != _content(new)
            metadata["generation"] = generation + changed
        kept = tuple(
            sorted((owner for owner in owners if owner.paths), key=lambda owner: owner.key)
        )
        stored = Stored(new, kept)
        if stored == old or target.parameters.get("dryRun"):
            return stored
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._remove(target)
            return stored
        return self._store(target, stored)

    def _store(self, target: Target, stored: Stored) -> Stored:
        self._version += 1
        stored.manifest["metadata"]["resourceVersion"] = str(self._version)
        before = self._objects.get(target.key)
        self._objects[target.key] = stored
        self.changed(target, before, stored)
        return stored

    def _remove(self, target: Target) -> None:
        self._version += 1
        self.changed(target, self._objects.pop(target.key), None)

    def changed(self, target: Target, before: Stored | None, after: Stored | None) -> None:
        """An object was created, changed or deleted. Subclasses may serve watches."""

    def _timestamp(self) -> str:
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class _Mine:
    """The entry of one manager in an object's `managedFields`."""

    manager: str
    operation: str
    target: Target

    @property
    def key(self) -> tuple[str, ...]:
        return self.manager, self.operation, self.target.subresource

    def find(self, stored: Stored | None) -> Owner | None:
        owners = stored.owners if stored else ()
        return next((owner for owner in owners if owner.key == self.key), None)

    def others(self, stored: Stored | None) -> list[Owner]:
        return [owner for owner in (stored.owners if stored else ()) if owner.key != self.key]

    def entry(self, stored: Stored | None, paths: Paths, time: str) -> Owner:
        last = self.find(stored)
        version = self.target.kind.resource.api_version
        # The time of the last change of the owned fields.
        time = last.time if last and last.paths == paths else time
        return Owner(self.manager, self.operation, version, self.target.subresource, time, paths)


def _without(owners: Iterable[Owner], paths: Paths) -> list[Owner]:
    return [replace(owner, paths=owner.paths - paths) for owner in owners]


def _content(manifest: Mapping[str, Any]) -> Unstructured:
    return {key: value for key, value in manifest.items() if key not in {"metadata", "status"}}


def _field_name(path: Path) -> str:
    names: list[str] = []
    for part in path:
        form, _, text = part.partition(":")
        if form == "f":
            names.append(f".{text}")
        elif form == "v":
            names.append(f"[={text}]")
        else:
            keys = (f"{key}={json.dumps(value)}" for key, value in json.loads(text).items())
            names.append(f"[{','.join(keys)}]")
    return "".join(names)


def _not_served() -> NotServed:
    return NotServed(404, "NotFound", "the fake API server has no such kind: give it to FakeClient")
