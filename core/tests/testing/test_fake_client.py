"""The fake client behaves like the real API server."""

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, cast

import pytest
from annotated_types import Ge, Le, MaxLen
from capelin.api import BaseObject, Condition, Conditions, Model, Object, kind
from capelin.api.capi import Machine
from capelin.api.core import ConfigMap, Secret
from capelin.client import ApiError, Client, Conflict
from capelin.testing.fake_client import Clock, FakeClient, cluster, machine, machine_pool


class Port(Model):
    name: Annotated[str, MaxLen(10)]
    number: Annotated[int, Ge(0), Le(9)] = 0


class Spec(Model):
    size: Annotated[int, Ge(0), Le(9)] = 1
    color: Annotated[str, MaxLen(10)] | None = None
    names: Annotated[list[Annotated[str, MaxLen(10)]], MaxLen(5)] = []


class Status(Model):
    ready: bool | None = None
    conditions: Conditions = []


@kind(group="fake.test.capelin.dev", version="v1")
class Shoal(Object[Spec, Status]):
    """A kind with everything that ownership distinguishes."""


NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Journal:
    """Responses of one server. Versions and uids are numbered in the order of their arrival."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.entries: list[Any] = []
        self._numbers: dict[str, dict[str, int]] = {}

    def shoal(
        self, name: str = "a", spec: Spec | None = None, status: Status | None = None
    ) -> Shoal:
        return Shoal.of(name, self.namespace, spec=spec or Spec(), status=status)

    def manifest(self, name: str = "a", metadata: Any = None, **parts: Any) -> dict[str, Any]:
        metadata = {"name": name, "namespace": self.namespace, **cast("Any", metadata or {})}
        resource = Shoal.resource
        return {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata,
            **parts,
        }

    async def apply(self, name: str = "a", manager: str = "one", **fields: Any) -> Any:
        """Apply a manifest; `force` is off."""
        metadata = fields.pop("metadata", None)
        manifest = self.manifest(name, metadata, **fields)
        return await self.do(
            self.client.apply(manifest, resource=Shoal.resource, manager=manager, force=False)
        )

    async def get(self, name: str = "a") -> Any:
        return await self.do(self.client.get(Shoal.resource, name, self.namespace))

    async def patch(self, patch: Any, name: str = "a", **options: Any) -> Any:
        return await self.do(
            self.client.patch(Shoal.resource, name, self.namespace, patch, **options)
        )

    async def do(self, call: Awaitable[Any]) -> Any:
        """Record the result or the error."""
        try:
            result = await call
        except ApiError as error:
            fields = sorted({_without_uid(str(cause.get("field"))) for cause in error.causes})
            # Messages and fields of invalid values depend on the validator.
            self.entries.append((type(error), fields if isinstance(error, Conflict) else []))
            return error
        value = result.dump() if isinstance(result, BaseObject) else result
        self.entries.append(self._plain(value))
        return result

    def _plain(self, value: Any, name: str = "") -> Any:
        if name in {"uid", "resourceVersion"}:
            numbers = self._numbers.setdefault(name, {})
            return numbers.setdefault(value, len(numbers))
        if name in {"creationTimestamp", "deletionTimestamp"}:
            return name
        if value == self.namespace:
            return "namespace"
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            # The server omits the time if a manager became the owner of existing fields.
            return {
                _without_uid(key): self._plain(part, key)
                for key, part in fields.items()
                if key != "time"
            }
        if isinstance(value, list):
            items = [self._plain(item) for item in cast("list[Any]", value)]
            return sorted(items, key=_owner) if name == "managedFields" else items
        return value


def _without_uid(path: str) -> str:
    """`managedFields` identifies owner references by their uid."""
    return re.sub('"uid":"[^"]*"|uid="[^"]*"', "uid", path)


def _owner(entry: Any) -> tuple[str, ...]:
    return entry["manager"], entry["operation"], entry.get("subresource", "")


def condition(type_: str, status: Literal["True", "False"] = "True") -> Condition:
    return Condition(type=type_, status=status, reason="Test", last_transition_time=NOW)


async def create_and_read(journal: Journal) -> None:
    client, namespace = journal.client, journal.namespace
    await journal.do(client.create(journal.shoal()))
    await journal.do(client.create(journal.shoal()))
    status = Status(ready=True)
    await journal.do(client.create(journal.shoal("b", spec=Spec(size=3), status=status)))
    await journal.do(client.get(Shoal, "a", namespace))
    await journal.do(client.find(Shoal, "c", namespace))
    await journal.do(client.get(Shoal, "c", namespace))
    await journal.do(
        client.create(journal.manifest("c", spec={"size": 30}), resource=Shoal.resource)
    )
    await journal.do(
        client.create(journal.manifest("c", spec={"sise": 3}), resource=Shoal.resource)
    )
    await journal.do(client.create(journal.manifest("c", spec={"size": 3})))
    await journal.do(client.create(Secret.of("a", namespace, data={"a": b"b"})))
    await journal.do(client.create(ConfigMap.of("a", namespace, data={"a": "b"})))
    await journal.do(client.create({"apiVersion": "none.dev/v1", "kind": "None"}))


async def select(journal: Journal) -> None:
    for name, labels in (("a", {"app": "x"}), ("b", {"app": "y", "more": ""}), ("c", {})):
        manifest = journal.manifest(name, {"labels": labels}, spec={})
        await journal.do(journal.client.create(manifest, resource=Shoal.resource))
    for labels in (
        *({"app": "x"}, "app!=x", "app", "!app", "app in (x, y),more", "app notin (x)"),
        *("app==y", ""),
    ):
        listing = await journal.client.list(Shoal, journal.namespace, labels=labels)
        journal.entries.append([shoal.name for shoal in listing.items])
    listing = await journal.client.list(Shoal, journal.namespace, fields="metadata.name=b")
    journal.entries.append([shoal.name for shoal in listing.items])


async def patch(journal: Journal) -> None:
    await journal.do(journal.client.create(journal.shoal()))
    await journal.patch({"spec": {"color": "red"}})
    await journal.patch({"spec": {"color": "red"}})
    await journal.patch({"spec": {"color": None}, "metadata": {"labels": {"a": "b"}}})
    await journal.patch({"metadata": {"labels": {"a": None}}})
    await journal.patch({"spec": {"size": 5}, "status": {"ready": True}})
    await journal.patch({"spec": {"size": 6}, "status": {"ready": True}}, subresource="status")
    await journal.patch({"spec": {"size": "6"}})
    await journal.patch({"spec": {"size": 7}, "metadata": {"resourceVersion": "1"}})
    await journal.patch({"spec": {"size": 7}}, dry_run=True)
    await journal.patch({"spec": {"size": 7}}, "missing")
    await journal.patch([{"op": "replace", "path": "/spec/size", "value": 8}], type="json")
    await journal.patch([{"op": "test", "path": "/spec/size", "value": 1}], type="json")
    await journal.patch([{"op": "remove", "path": "/spec/color"}], type="json")
    await journal.patch([{"op": "add", "path": "/spec/names", "value": ["a"]}], type="json")
    await journal.patch([{"op": "add", "path": "/spec/names/-", "value": "b"}], type="json")
    await journal.get()


async def delete(journal: Journal) -> None:
    client, namespace = journal.client, journal.namespace
    await journal.do(client.create(journal.manifest("b", spec={}), resource=Shoal.resource))
    await journal.do(client.delete(Shoal, "b", namespace, uid="another"))
    await journal.do(client.delete(Shoal, "b", namespace))
    await journal.do(client.delete(Shoal, "b", namespace))
    held = journal.manifest("a", {"finalizers": ["test.dev/a", "test.dev/b"]}, spec={})
    await journal.do(client.create(held, resource=Shoal.resource))
    await journal.do(client.delete(Shoal, "a", namespace))
    await journal.get()
    await journal.do(client.delete(Shoal, "a", namespace))
    await journal.get()
    await journal.patch({"metadata": {"finalizers": ["test.dev/a", "test.dev/c"]}})
    remove = {"op": "remove", "path": "/metadata/finalizers/0"}
    await journal.patch([remove], type="json")
    await journal.do(client.create(held, resource=Shoal.resource))
    await journal.patch([remove], type="json")
    await journal.get()


async def apply_fields_of_several(journal: Journal) -> None:
    await journal.apply(spec={"size": 2, "color": "red"}, metadata={"labels": {"a": "b"}})
    await journal.apply(spec={"size": 2, "color": "red"}, metadata={"labels": {"a": "b"}})
    await journal.apply(manager="two", spec={"color": "blue"})
    await journal.apply(manager="two", spec={"color": "red"})
    await journal.apply(spec={"size": 2})
    await journal.apply(manager="two", spec={"names": ["a", "b"]})
    await journal.patch({"spec": {"size": 4}})
    await journal.apply(spec={"size": 5})
    manifest = journal.manifest(spec={"size": 5})
    await journal.do(journal.client.apply(manifest, resource=Shoal.resource, manager="one"))
    await journal.apply(manager="two", metadata={"annotations": {"a": "b"}})
    await journal.apply(manager="two")
    await journal.apply(spec={"size": 50})
    await journal.apply(metadata={"uid": "another"}, spec={"size": 6})
    await journal.apply("b", metadata={"uid": "another"}, spec={"size": 6})
    shoal = await journal.client.get(Shoal, "a", journal.namespace)
    await journal.do(journal.client.apply_fields(shoal, {"spec.color": "green"}))
    await journal.get()


async def apply_metadata(journal: Journal) -> None:
    # Both exist: the real server's garbage collector removes references to missing objects.
    owners: list[dict[str, Any]] = []
    for name in ("owner", "other"):
        owner = await journal.do(journal.client.create(ConfigMap.of(name, journal.namespace)))
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner.uid}
        owners.append(reference)
    first, second = owners[0], {**owners[1], "controller": True}
    await journal.apply(spec={}, metadata={"finalizers": ["test.dev/a", "test.dev/b"]})
    await journal.apply(manager="two", metadata={"finalizers": ["test.dev/c", "test.dev/a"]})
    await journal.apply(metadata={"finalizers": ["test.dev/b"]})
    await journal.apply(manager="two", metadata={"ownerReferences": [first]})
    await journal.apply(spec={}, metadata={"ownerReferences": [{**first, "controller": True}]})
    await journal.apply(manager="three", metadata={"ownerReferences": [second]})
    await journal.apply(manager="two")
    await journal.patch({"metadata": {"finalizers": None}})


async def apply_status(journal: Journal) -> None:
    client = journal.client
    await journal.do(client.apply_status(journal.shoal("b", status=Status(ready=True))))
    shoal = await journal.do(client.create(journal.shoal()))

    async def apply(manager: str, *conditions: Condition, **fields: Any) -> None:
        status = Status(conditions=list(conditions), **fields)
        desired = journal.shoal(status=status)
        await journal.do(client.apply_status(desired, manager=manager, force=False))

    await apply("one", condition("Ready"), condition("Up"), ready=True)
    await apply("two", condition("Other"))
    await apply("one", condition("Ready", "False"), ready=True)
    await apply("one", condition("Ready", "False"), ready=True)
    await apply("two", condition("Other"), condition("Ready"))
    await apply("two", condition("Ready", "False"), condition("Other"), condition("New"))
    await apply("one", ready=False)
    await journal.apply(spec={"size": 1}, status={"ready": True})
    await journal.patch({"status": None}, subresource="status")
    assert shoal.metadata.generation == 1


@pytest.mark.parametrize(
    "story",
    [
        *(create_and_read, select, patch, delete),
        *(apply_fields_of_several, apply_metadata, apply_status),
    ],
)
async def test_the_fake_client_responds_like_the_real_api_server(
    client: Client,
    namespace: str,
    install_crds: Callable[..., None],
    story: Callable[[Journal], Awaitable[None]],
) -> None:
    install_crds(Shoal)
    real = Journal(client, namespace)
    fake = Journal(FakeClient(Shoal, manager="test"), namespace)
    await story(real)
    await story(fake)
    assert fake.entries == real.entries


async def test_add_stores_objects_with_status_and_without_a_recorded_write() -> None:
    clock = Clock()
    client = FakeClient(clock=clock)
    demo = client.add(cluster("demo", paused=True))
    pool = client.add(machine_pool("pool", demo, replicas=3))
    client.add(machine("one", demo, provider_id="test://one"))
    clock.advance(60)
    late = client.add(Shoal.of("a", "default", spec=Spec(), status=Status(ready=True)))
    assert pool.metadata.owner_references[0].uid == demo.uid
    assert pool.metadata.labels == {"cluster.x-k8s.io/cluster-name": "demo"}
    assert late.metadata.creation_timestamp == NOW + timedelta(minutes=1)
    assert late.status == Status(ready=True)
    assert client.writes == []
    assert (await client.get(Machine, "one", "default")).spec.provider_id == "test://one"
    await client.delete(Machine, "one", "default")
    path = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines/one"
    assert client.writes == [f"DELETE {path}"]
