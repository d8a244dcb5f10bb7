"""Storage migration on a real API server: objects are written, and old versions are dropped."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Le
from capelin.api import Model, Object, crd, kind
from capelin.api.core import CustomResourceDefinition
from capelin.client import Client, ClientError, Config, Conflict, Invalid, NotFound
from capelin.errors import BusyError
from capelin.provider import Migration, migrate_storage, storage_plan

GROUP = "migration.capelin.test"
NAME = f"stones.{GROUP}"


class Spec(Model):
    size: Annotated[int, Ge(0), Le(9)] = 1


@kind(group=GROUP, version="v1alpha1", name="Stone")
class Old(Object[Spec, Spec]):
    """A stone."""


@kind(group=GROUP, version="v1", name="Stone")
class New(Object[Spec, Spec]):
    """A stone."""


@pytest.fixture
async def client(kubeconfig: Path, install_crds: Callable[..., None]) -> AsyncGenerator[Client]:
    install_crds(Old)
    async with Client(Config.from_kubeconfig(kubeconfig)) as client:
        yield client
        await client.delete(CustomResourceDefinition, NAME)


async def versions(client: Client) -> dict[str, str]:
    listing = await client.list(New)
    return {obj.name: obj.metadata.resource_version or "" for obj in listing.items}


async def stored(client: Client) -> list[str]:
    return (await client.get(CustomResourceDefinition, NAME)).status.stored_versions


async def test_an_old_version_can_go_after_a_migration(
    client: Client, namespace: str, install_crds: Callable[..., None]
) -> None:
    for number in range(3):
        await client.create(Old.of(f"old-{number}", namespace, spec=Spec()))
    install_crds((Old, New))
    await client.create(New.of("new", namespace, spec=Spec()))
    assert await stored(client) == ["v1alpha1", "v1"]
    before = await versions(client)
    counted = await migrate_storage(client, NAME, dry_run=True)
    assert (counted.objects, counted.plan.old) == (4, ("v1alpha1",))
    assert (await versions(client), len(await stored(client))) == (before, 2)
    calls: list[tuple[int, int]] = []
    result = await migrate_storage(
        client, NAME, progress=lambda done, total: calls.append((done, total))
    )
    assert (result.objects, result.failures) == (4, ())
    assert calls == [(done, 4) for done in (1, 2, 3, 4)]
    after = await versions(client)
    assert {name for name in after if after[name] != before[name]} == {"old-0", "old-1", "old-2"}
    assert await stored(client) == ["v1"]
    await client.apply(crd(New), resource=CustomResourceDefinition.resource)
    assert (await migrate_storage(client, NAME)).objects == 0
    assert set(await versions(client)) == set(before)


def definition(**status: Any) -> dict[str, Any]:
    made = crd(Old, New)
    made["metadata"]["generation"] = 1
    return {**made, "status": status}


def test_a_plan_uses_a_served_version() -> None:
    made = definition(storedVersions=["v1alpha1", "v1"])
    assert storage_plan(made).resource.version == "v1"
    made["spec"]["versions"][1]["served"] = False
    plan = storage_plan(made)
    assert (plan.stored, plan.old, plan.resource.version) == ("v1", ("v1alpha1",), "v1alpha1")
    made["spec"]["versions"][0]["served"] = False
    assert storage_plan(made).resource.version == "v1"
    assert storage_plan(definition()).old == ()


class Scripted:
    """A client whose API server answers each write of an object as the test sets."""

    def __init__(self, **answers: list[ClientError]) -> None:
        self.answers = answers
        self.generation = 1
        self.patched: list[str] = []

    async def get(self, _: object, __: str) -> dict[str, Any]:
        made = definition(storedVersions=["v1alpha1", "v1"])
        made["metadata"] |= {"generation": self.generation, "resourceVersion": "7"}
        return made

    async def request(self, _: str, __: str, *, parameters: dict[str, str]) -> dict[str, Any]:
        names = [*self.answers]
        start = int(parameters.get("continue", "0"))
        page = [{"metadata": {"name": name, "namespace": "sea"}} for name in names[start:][:1]]
        more = {"continue": str(start + 1)} if start + 1 < len(names) else {}
        return {"items": page, "metadata": more}

    async def patch(self, _: object, name: str, /, *__: object, **___: object) -> None:
        if self.answers.get(name):
            raise self.answers[name].pop(0)
        self.patched.append(name)


async def migrated(client: Any) -> Migration:
    return await migrate_storage(client, NAME)


async def test_lost_races_are_repeated_and_deleted_objects_need_nothing() -> None:
    client = Scripted(a=[Conflict(409)], b=[NotFound(404)], c=[])
    result = await migrated(client)
    assert (result.objects, result.failures) == (3, ())
    assert sorted(client.patched) == ["a", "c", NAME]


async def test_a_rejected_object_keeps_the_old_version() -> None:
    client = Scripted(a=[], b=[Invalid(422, "Invalid", "size is too small")])
    result = await migrated(client)
    assert result.failures == ("sea/b: size is too small",)
    assert client.patched == ["a"]


async def test_a_changed_crd_keeps_the_old_version() -> None:
    class Changing(Scripted):
        async def patch(self, *arguments: Any, **more: object) -> None:
            self.generation += 1
            await super().patch(*arguments, **more)

    client = Changing(a=[])
    with pytest.raises(BusyError, match=r"changed during the migration"):
        await migrated(client)
    assert client.patched == ["a"]


async def test_a_status_that_others_write_too_is_patched_again() -> None:
    conflicts: list[ClientError] = [Conflict(409)]

    class Racing(Scripted):
        async def patch(self, _: object, name: str, /, *__: object, **___: object) -> None:
            if name == NAME and conflicts:
                raise conflicts.pop()
            self.patched.append(name)

    racing = Racing(a=[])
    await migrated(racing)
    assert racing.patched == ["a", NAME]
