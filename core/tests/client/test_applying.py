"""`needs_apply` agrees with the real API server."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
from capelin.api import Model, Object, Resource, Unstructured, kind
from capelin.api.core import ConfigMap
from capelin.client import Client, Conflict, Invalid, needs_apply
from capelin.client.apply import configuration, status_configuration
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from core.tests.client.conftest import Scripted

TEXT = {"type": "string"}
SHELLS = Resource("client.test.capelin.dev", "v1", "Shell", "shells", namespaced=False)
SPEC = {
    "type": "object",
    "properties": {
        "text": TEXT,
        "number": {"type": "integer"},
        "flag": {"type": "boolean"},
        "port": {"x-kubernetes-int-or-string": True},
        "inner": {"type": "object", "properties": {"a": TEXT, "b": TEXT}},
        "map": {"type": "object", "additionalProperties": TEXT},
        "atomicMap": {
            "type": "object",
            "additionalProperties": TEXT,
            "x-kubernetes-map-type": "atomic",
        },
        "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "list": {"type": "array", "items": TEXT},
        "set": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
        "items": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name", "protocol"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": TEXT,
                    "protocol": {"type": "string", "default": "TCP"},
                    "value": TEXT,
                    "map": {"type": "object", "additionalProperties": TEXT},
                },
            },
        },
    },
}
DEFINITION: Unstructured = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "shells.client.test.capelin.dev"},
    "spec": {
        "group": SHELLS.group,
        "scope": "Cluster",
        "names": {"kind": "Shell", "plural": "shells"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": SPEC, "status": SPEC},
                    }
                },
            }
        ],
    },
}


class Inner(Model):
    a: str | None = None
    b: str | None = None


class Spec(Model):
    text: str | None = None
    number: int | None = None
    inner: Inner | None = None


class Status(Model):
    text: str | None = None


WORD = st.sampled_from(["a", "b", "c"])
MAP = st.dictionaries(WORD, WORD, max_size=2)
ITEM = st.fixed_dictionaries(
    {"name": WORD},
    optional={"protocol": st.sampled_from(["TCP", "UDP"]), "value": WORD, "map": MAP},
)
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "text": WORD,
        "number": st.integers(0, 1),
        "flag": st.booleans(),
        "port": st.sampled_from([1, "1"]),
        "inner": st.fixed_dictionaries({}, optional={"a": WORD, "b": WORD}),
        "map": MAP,
        "atomicMap": MAP,
        "anything": st.dictionaries(WORD, st.one_of(WORD, st.integers(0, 1), MAP), max_size=2),
        "list": st.lists(WORD, max_size=2),
        "set": st.lists(WORD, max_size=3, unique=True),
        "items": st.lists(
            ITEM, max_size=3, unique_by=lambda item: (item["name"], item.get("protocol", "TCP"))
        ),
    },
)
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "labels": MAP,
        "annotations": MAP,
        "finalizers": st.lists(
            st.sampled_from(["test.dev/a", "test.dev/b"]), max_size=2, unique=True
        ),
    },
)
DESIRED = st.fixed_dictionaries({}, optional={"metadata": METADATA, "spec": PARTS})
MANAGER = st.sampled_from(["one", "two"])


@pytest.fixture(scope="session")
async def shells(client: Client) -> Resource:
    await client.apply(DEFINITION)
    definitions = Resource(
        "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"
    )
    async for event in client.watch(
        definitions, fields=f"metadata.name={SHELLS.plural}.{SHELLS.group}"
    ):
        conditions = event.object.get("status", {}).get("conditions") or ()
        if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
            break
    return SHELLS


def version(obj: Unstructured) -> str:
    return obj["metadata"]["resourceVersion"]


def shell(name: str, parts: dict[str, Any]) -> Unstructured:
    metadata = {"name": name, **parts.get("metadata", {})}
    kind = {"apiVersion": SHELLS.api_version, "kind": SHELLS.kind}
    return {**kind, **deepcopy(parts), "metadata": metadata}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(MANAGER, DESIRED), min_size=1, max_size=3), others=st.booleans())
@example(steps=[("one", {"metadata": {}, "spec": {"set": []}})], others=False)
# Even an apply without fields adds managedFields to an object that has none.
@example(steps=[("one", {}), ("one", {"spec": {"set": []}})], others=False)
# Our atomic list or map becomes empty.
@example(steps=[("one", {"spec": {"list": ["a"]}}), ("one", {"spec": {"list": []}})], others=False)
@example(
    steps=[("one", {"spec": {"atomicMap": {"a": "b"}}}), ("one", {"spec": {"atomicMap": {}}})],
    others=False,
)
@example(
    steps=[("one", {"spec": {"text": "a"}}), ("one", {"spec": {"text": "a", "set": []}})],
    others=False,
)
async def test_an_apply_is_skipped_exactly_when_it_would_change_nothing(
    client: Client, shells: Resource, steps: list[tuple[str, dict[str, Any]]], *, others: bool
) -> None:
    name = f"shell-{uuid4().hex[:12]}"
    await client.create(shell(name, {}), resource=shells)
    for manager, parts in [*steps, *steps, steps[-1]]:
        if others:
            await client.patch(shells, name, None, steps[0][1])
        desired = configuration(shell(name, parts))
        before = await client.get(shells, name)
        expected = needs_apply(before, desired, manager)
        try:
            after = await client.apply(desired, resource=shells, manager=manager)
        except Invalid:
            # The server stores null for a map that loses all its fields.
            continue
        moved = version(before) != version(after)
        assert expected or not moved, "a skipped apply would have changed the object"
        # The owner of an empty value depends on the schema, so the client sends it to be safe.
        assert moved or not expected or others or has_empty_value(parts)


def has_empty_value(value: Any) -> bool:
    """Whether the value contains an empty list or map."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return not fields or any(map(has_empty_value, fields.values()))
    return isinstance(value, list) and not value


async def test_a_changed_order_of_items_needs_an_apply(client: Client, shells: Resource) -> None:
    name = f"shell-{uuid4().hex[:12]}"
    items: list[dict[str, Any]] = [{"name": "a"}, {"name": "b"}]
    applied = shell(name, {"spec": {"items": items, "set": ["a", "b"]}})
    live = await client.apply(applied, resource=shells)
    assert not needs_apply(live, applied, "test")
    for spec in ({"items": items[::-1], "set": ["a", "b"]}, {"items": items, "set": ["b", "a"]}):
        desired = shell(name, {"spec": spec})
        assert needs_apply(live, desired, "test")
        live = await client.apply(desired, resource=shells)
        assert not needs_apply(live, desired, "test")


async def test_apply_sends_no_unchanged_object(server: Scripted) -> None:
    fields: dict[str, Any] = {"f:data": {"f:x": {}}, "f:metadata": {"f:labels": {"f:app": {}}}}
    entry: dict[str, Any] = {
        "manager": "test",
        "operation": "Apply",
        "apiVersion": "v1",
        "fieldsV1": fields,
    }
    live = ConfigMap.read(
        {
            "metadata": {
                "name": "a",
                "namespace": "b",
                "uid": "1",
                "labels": {"app": "web", "theirs": "too"},
                "managedFields": [entry],
            },
            "data": {"x": "1", "theirs": "too"},
        }
    )
    desired = ConfigMap.of("a", "b", data={"x": "1"})
    desired.metadata.labels = {"app": "web"}
    server.then(server.reply(200, desired.dump()))
    async with server.client() as client:
        assert await client.apply(desired, live=live) is live
        assert server.requests == []
        desired.data = {"x": "2"}
        assert await client.apply(desired, live=live) is not live
    assert len(server.requests) == 1


async def test_apply_status_sends_no_unchanged_status(client: Client, shells: Resource) -> None:
    name = f"shell-{uuid4().hex[:12]}"
    await client.apply(shell(name, {"spec": {"text": "a"}}), resource=shells)
    desired = {**shell(name, {}), "status": {"items": [{"name": "a"}], "list": ["x"]}}
    live = await client.apply_status(desired, resource=shells)
    assert live["spec"] == {"text": "a"}
    assert await client.apply_status(desired, resource=shells, live=live) is live
    desired["status"]["list"] = ["y"]
    changed = await client.apply_status(desired, resource=shells, live=live)
    assert version(changed) != version(live)
    assert changed["status"]["list"] == ["y"]


def owned(fields: dict[str, Any], **entry: str) -> Unstructured:
    """A live object whose `fields` belong to `me`."""
    mine = {"manager": "me", "operation": "Apply", "apiVersion": "v1", "fieldsV1": fields, **entry}
    metadata = {"name": "a", "uid": "1", "managedFields": [mine]}
    return {"apiVersion": "v1", "kind": "Thing", "metadata": metadata, "spec": {"a": 1, "b": [1]}}


def manifest_with(spec: dict[str, Any], **metadata: Any) -> Unstructured:
    manifest = {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a", **metadata}}
    return {**manifest, "spec": spec}


MINE: dict[str, Any] = {"f:spec": {"f:a": {}}}


@pytest.mark.parametrize(
    ("live", "desired"),
    [
        (owned(MINE), manifest_with({"a": 2})),
        (owned(MINE), manifest_with({"a": True})),
        (owned(MINE), manifest_with({"a": 1, "b": [1]})),
        (owned(MINE), manifest_with({})),
        (owned(MINE), manifest_with({"a": 1}, uid="2")),
        (owned(MINE), manifest_with({"a": 1}, labels={"new": "x"})),
        (owned(MINE, manager="you"), manifest_with({"a": 1})),
        (owned(MINE, operation="Update"), manifest_with({"a": 1})),
        (owned(MINE, subresource="status"), manifest_with({"a": 1})),
        (owned(MINE, apiVersion="v2"), manifest_with({"a": 1})),
        (owned({"f:spec": {"f:a": {}, "f:gone": {}}}), manifest_with({"a": 1})),
        (owned({"f:spec": {"f:b": {"i:0": {}}}}), manifest_with({"b": [1]})),
        (owned({"f:spec": {"f:b": {"v:1": {}, "v:2": {}}}}), manifest_with({"b": [1, 2]})),
        (owned({"f:spec": {"f:b": {"v:1": {}}}}), manifest_with({"b": {"x": 1}})),
        (owned({"f:spec": {"f:b": {}}}), manifest_with({"b": {}})),
    ],
)
def test_any_difference_needs_an_apply(live: Unstructured, desired: Unstructured) -> None:
    assert needs_apply(live, desired, "me")


def test_an_empty_list_without_our_ownership_needs_an_apply() -> None:
    live = owned(MINE)
    live["spec"] = {"a": 1, "b": []}
    # If it is atomic, the apply makes us its owner. Only the schema shows that.
    assert needs_apply(live, manifest_with({"a": 1, "b": []}), "me")
    theirs: dict[str, Any] = {"f:spec": {"f:b": {}}}
    live["metadata"]["managedFields"].append({"manager": "you", "fieldsV1": theirs})
    assert needs_apply(live, manifest_with({"a": 1, "b": []}), "me")


def test_entries_of_others_in_our_empty_map_stay_theirs() -> None:
    live = owned({"f:spec": {"f:map": {}}})
    live["spec"] = {"map": {"x": 1}}
    # If it is atomic, the apply empties it. Only the schema shows that.
    assert needs_apply(live, manifest_with({"map": {}}), "me")
    theirs: dict[str, Any] = {"f:spec": {"f:map": {"f:x": {}}}}
    live["metadata"]["managedFields"].append({"manager": "you", "fieldsV1": theirs})
    assert not needs_apply(live, manifest_with({"map": {}}), "me")
    assert needs_apply(live, manifest_with({"map": {"x": 1}}), "me")


@pytest.mark.parametrize(
    ("live", "desired"),
    [
        (owned(MINE), manifest_with({"a": 1})),
        (owned(MINE), manifest_with({"a": 1}, uid="1", namespace="x", resourceVersion="7")),
        (owned({"f:spec": {".": {}, "f:a": {}}}), manifest_with({"a": 1})),
        (owned({"f:spec": {"f:b": {"v:1": {}}}}), manifest_with({"b": [1]})),
        (owned({"f:spec": {"f:b": {}}}), manifest_with({"b": [1]})),
        # Owned as an empty map that defaults have filled since: the desired state is unchanged.
        (owned({"f:spec": {}}), manifest_with({"a": 1, "b": [1]})),
    ],
)
def test_equal_objects_need_no_apply(live: Unstructured, desired: Unstructured) -> None:
    assert not needs_apply(live, desired, "me")


READ: Unstructured = {
    "apiVersion": "v1",
    "kind": "Thing",
    "metadata": {
        "name": "a",
        "namespace": "b",
        "uid": "1",
        "resourceVersion": "7",
        "generation": 3,
        "creationTimestamp": "2030-01-01T00:00:00Z",
        "deletionTimestamp": "2030-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 0,
        "managedFields": [],
        "labels": {},
        "annotations": {"x": "y"},
    },
    "spec": {"a": 1},
    "status": {"b": 2},
}


def test_configuration_omits_fields_of_the_server() -> None:
    metadata = {"name": "a", "namespace": "b", "uid": "1", "annotations": {"x": "y"}}
    kind = {"apiVersion": "v1", "kind": "Thing"}
    assert configuration(READ) == {**kind, "metadata": metadata, "spec": {"a": 1}}


def test_status_configuration_contains_only_the_status() -> None:
    metadata = {"name": "a", "namespace": "b", "uid": "1"}
    kind = {"apiVersion": "v1", "kind": "Thing"}
    assert status_configuration(READ) == {**kind, "metadata": metadata, "status": {"b": 2}}
    assert "status" not in status_configuration({**READ, "status": {}})


async def test_patch_with_an_old_version_conflicts(client: Client, namespace: str) -> None:
    first = await client.apply(ConfigMap.of("a", namespace, data={"x": "1"}))
    second = await client.apply(ConfigMap.of("a", namespace, data={"x": "2"}))
    assert second.metadata.resource_version != first.metadata.resource_version

    async def change(read: ConfigMap) -> ConfigMap:
        metadata = {"resourceVersion": read.metadata.resource_version}
        return await client.patch(
            ConfigMap, "a", namespace, {"metadata": metadata, "data": {"y": "1"}}
        )

    with pytest.raises(Conflict):
        await change(first)
    assert (await change(second)).data == {"x": "2", "y": "1"}


async def test_apply_with_the_uid_of_another_object_conflicts(
    client: Client, namespace: str
) -> None:
    await client.create(ConfigMap.of("a", namespace))
    for name in ("a", "not-there"):
        other = ConfigMap.of(name, namespace, data={"x": "3"})
        other.metadata.uid = str(uuid4())
        with pytest.raises(Conflict):
            await client.apply(other)


@kind(group="client.test.capelin.dev", version="v1", name="Shell", namespaced=False)
class Shell(Object[Spec, Status]):
    """A kind with typed fields."""


async def test_apply_rejects_an_object_that_was_read(client: Client, namespace: str) -> None:
    made = await client.create(ConfigMap.of("a", namespace, data={"theirs": "1"}))
    made.data["ours"] = "1"
    with pytest.raises(ValueError, match="was read from an API server"):
        await client.apply(made)
    plain = await client.get(ConfigMap.resource, "a", namespace)
    with pytest.raises(ValueError, match=f"ConfigMap {namespace}/a was read"):
        await client.apply(plain)


async def test_apply_fields_keeps_other_fields(client: Client, shells: Resource) -> None:
    name = f"shell-{uuid4().hex[:12]}"
    spec = {"text": "theirs", "inner": {"a": "theirs", "b": "theirs"}}
    await client.apply(shell(name, {"spec": spec}), resource=shells, manager="user")
    read = await client.get(Shell, name)
    # A later change by another user stays.
    await client.patch(shells, name, None, {"spec": {"text": "changed"}})
    after = await client.apply_fields(read, {"spec.inner.a": "ours", "spec.number": 1})
    assert after.spec == Spec(text="changed", number=1, inner=Inner(a="ours", b="theirs"))
    assert await client.apply_fields(after, {"spec.inner.a": "ours", "spec.number": 1}) is after
    # Other fields have another manager, so these fields stay, and those of the whole object too.
    await client.apply_fields(after, {"spec.text": "ours"})
    await client.apply(shell(name, {"metadata": {"labels": {"a": "b"}}}), resource=shells)
    final = await client.get(Shell, name)
    assert final.spec == Spec(text="ours", number=1, inner=Inner(a="ours", b="theirs"))
    user = next(e for e in final.metadata.managed_fields or () if e["manager"] == "user")
    assert user["fieldsV1"]["f:spec"] == {"f:inner": {"f:b": {}}}


async def test_apply_fields_accepts_a_model_as_a_value(client: Client, shells: Resource) -> None:
    name = f"shell-{uuid4().hex[:12]}"
    await client.apply(shell(name, {"spec": {"text": "theirs"}}), resource=shells)
    read = await client.get(Shell, name)
    after = await client.apply_fields(read, {"spec.inner": Inner(a="x")})
    assert after.spec.inner == Inner(a="x")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"spec.numbr": 1}, r'Shell has no field spec.numbr: no "numbr" \(did you mean "number"'),
        ({"spec.number.x": 1}, 'Shell has no field spec.number.x: no "x"'),
        ({"spec.number": "1"}, "Shell spec.number: Input should be a valid integer"),
        ({"spec.inner": {"c": "1"}}, "Shell spec.inner: Extra inputs are not permitted"),
    ],
)
async def test_apply_fields_rejects_invalid_fields_and_missing_uids(
    server: Scripted, fields: dict[str, Any], message: str
) -> None:
    read = Shell.read({"metadata": {"name": "a", "uid": "1"}, "spec": {}})
    async with server.client() as client:
        with pytest.raises(ValueError, match=message):
            await client.apply_fields(read, fields)
        with pytest.raises(ValueError, match="Shell a has no uid"):
            await client.apply_fields(Shell.of("a", spec=Spec()), {"spec.number": 1})
    assert server.requests == []


async def test_apply_fields_does_not_create_objects(client: Client, shells: Resource) -> None:
    name = f"shell-{uuid4().hex[:12]}"
    await client.apply(shell(name, {"spec": {"text": "theirs"}}), resource=shells)
    read = await client.get(Shell, name)
    await client.delete(Shell, name)
    with pytest.raises(Conflict):
        await client.apply_fields(read, {"spec.number": 1})
    assert await client.find(Shell, name) is None
